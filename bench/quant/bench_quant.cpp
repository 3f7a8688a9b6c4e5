// Quantized forward passes of ResNet-18 and BERT-base: compiled int8 models against those of OpenVINO, ONNX Runtime and PyTorch.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "bellows/compile.h"
#include "bellows/core/error.h"
#include "bellows/quant.h"
#include "bench/quant/inference_tasks.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {
namespace {

constexpr double most_seconds = 600, least_sqnr_db = 12;

using Call = std::function<at::Tensor()>;

Call compiled_call(const Model& model, const at::Tensor& x, int replay_after = 0) {
  const auto forward = std::make_shared<Compiled<std::function<at::Tensor(const at::Tensor&)>>>(
      [model](const at::Tensor& input) {
        const c10::InferenceMode no_gradients;
        return model.forward(input);
      },
      CompileOptions{.frozen = model, .replay = {.after = replay_after}});
  for (int i = 0; i < 6; ++i) (*forward)(x);
  return [forward, x] { return (*forward)(x); };
}

at::Tensor as_tensor(const std::vector<double>& values) {
  return torch::tensor(std::vector<double>(values.begin() + 1, values.end()), torch::kDouble);
}

/// One task and method, and all tools that compute it.
class Contest {
 public:
  Contest(const InferenceTask& task, quant::Method method, const Options& options)
      : task_(task), method_(method), options_(options), inputs_(calibration_of(task)), model_(model_of(task)) {
    const torch::NoGradGuard no_gradients;
    expected_ = model_.forward(inputs_[0][0]).flatten().to(torch::kDouble);
  }

  Row run() {
    const quant::Quantized made = quant::quantize(model_, {.method = method_}, inputs_);
    add("int8", compiled_call(made.model, inputs_[0][0]));
    add("int8, replay", compiled_call(made.model, inputs_[0][0], 3));
    add("fp32", compiled_call(model_, inputs_[0][0]));
    if (!options_.peer_python.empty()) {
      for (const std::string& tool : tools()) add_tool(tool);
    }
    const Comparison all = compare(sides_, {.window_s = options_.quick ? 0.3 : 1,
                                            .windows = options_.quick ? 3 : 11,
                                            .budget_s = options_.quick ? 10 : 1e9});
    Row row = time_row(task_.about + ", " + quant::name_of(method_) + " int8", "time per call", "ms", all, equal_);
    compare_with_tools(row, all);
    row.note = notes_ + c10::str("; all tensors: ", made.report.bytes_after / 1'000'000, " of ",
                                 made.report.bytes_before / 1'000'000, " MB");
    return row;
  }

 private:
  std::vector<std::string> tools() const {
    if (options_.quick)
      return method_ == quant::Method::dynamic ? std::vector<std::string>{"torch_dynamic"} : std::vector<std::string>{};
    if (method_ == quant::Method::dynamic) return {"torch_dynamic", "onnxruntime_dynamic", "torchao_dynamic"};
    return {"openvino", "onnxruntime"};
  }

  /// Sets the ratio to the fastest other project. Our own sides are no peers.
  static void compare_with_tools(Row& row, const Comparison& all) {
    constexpr size_t own = 3;
    const auto faster = [](const Side& a, const Side& b) { return a.seconds() < b.seconds(); };
    const auto best = std::min_element(all.sides.begin() + std::min(own, all.sides.size()), all.sides.end(), faster);
    row.best_peer = best == all.sides.end() ? "" : best->name;
    row.ratio_to_best_peer = std::numeric_limits<double>::quiet_NaN();
    if (best == all.sides.end()) return;
    row.interval = all.speedup_over(*best);
    row.ratio_to_best_peer = best->seconds() / all.ours().seconds();
  }

  void judge(const std::string& name, const at::Tensor& values) {
    const double level = quant::sqnr(expected_, values.flatten().to(torch::kDouble));
    equal_ = equal_ && level >= least_sqnr_db;
    char text[64];
    std::snprintf(text, sizeof text, "%s%s %.0f dB", notes_.empty() ? "against fp32: " : ", ", name.c_str(), level);
    notes_ += text;
  }

  void add(const std::string& name, const Call& call) {
    judge(name, call());
    sides_.push_back(timed_contestant(name, [call] { call(); }));
  }

  void add_tool(const std::string& tool) {
    try {
      peers_.push_back(std::make_unique<PeerProcess>(
          std::vector<std::string>{options_.peer_python, source_dir() + "/bench/peers/quant.py"}));
      judge(tool, as_tensor(peers_.back()->ask_numbers("prepare " + task_.name + " " + tool, most_seconds)));
      sides_.push_back(peers_.back()->as_contestant(tool));
    } catch (const c10::Error& error) {
      notes_ += ", " + tool + ": " + user_message(error);
    }
  }

  InferenceTask task_;
  quant::Method method_;
  const Options& options_;
  std::vector<std::vector<at::Tensor>> inputs_;
  Model model_;
  at::Tensor expected_;
  std::vector<std::unique_ptr<PeerProcess>> peers_;
  std::vector<Contestant> sides_;
  std::string notes_;
  bool equal_ = true;
};

int run(const Options& options) {
  Report report("quant", options);
  for (const quant::Method method : {quant::Method::static_range, quant::Method::dynamic}) {
    for (const InferenceTask& task : inference_tasks()) {
      if (!options.extra.at("task").empty() && options.extra.at("task") != task.name) continue;
      if (method == quant::Method::dynamic && !task.is_text()) continue;
      const std::string name = task.name + " " + quant::name_of(method);
      if (report.has_time_for(name)) report.add(Contest(task, method, options).run());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times forward passes with int8 weights and activations: compiled, next to fp32 and to OpenVINO "
      "with NNCF, ONNX\nRuntime and PyTorch. All sides must be within 12 dB of the fp32 results.\n--task: "
      "one of resnet18, bert-128 and bert-14.",
      run, {{"task", ""}});
}
