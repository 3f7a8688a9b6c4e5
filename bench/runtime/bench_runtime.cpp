// Forward passes of ResNet-18 and BERT-base in all inference back ends, from files: eager libtorch, compiled functions,
// compiled programs, AOTInductor, ONNX Runtime and OpenVINO, in fp32, bf16 and int8.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "bellows/amp/autocast.h"
#include "bellows/compile.h"
#include "bellows/core/error.h"
#include "bellows/export.h"
#include "bellows/quant.h"
#include "bellows/runtime.h"
#include "bellows/runtime/comparison.h"
#include "bench/quant/inference_tasks.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {
namespace {

constexpr double most_seconds = 900, least_sqnr_db = 12;

const std::vector<std::string> kinds{"fp32", "bf16", "int8"};

/// A folder for the files of a row, which is deleted with the object.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "bench-runtime-XXXXXX").string();
    TORCH_CHECK(mkdtemp(name.data()), "cannot create a folder in ", std::filesystem::temp_directory_path().string());
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// One task and dtype, and all back ends that compute it.
class Contest {
 public:
  Contest(const InferenceTask& task, std::string kind, const Options& options)
      : task_(task), kind_(std::move(kind)), options_(options), inputs_(calibration_of(task)), model_(model_of(task)) {
    const torch::NoGradGuard no_gradients;
    expected_ = model_.forward_all(inputs_[0]);
  }

  Row run() {
    write_files();
    add_file("program", "net.program");
    if (std::filesystem::exists(folder_ / "net.pt")) {
      add_file("compiled", "net.pt");
      add_file("libtorch", "net.pt");
    } else {
      add_model("compiled", compiled(kind_ == "int8" ? *quantized_ : model_));
      if (kind_ != "int8") add_model("libtorch", eager(model_));  // eager int8 models run a slow reference
    }
    if (std::filesystem::exists(folder_ / "net.pt2")) add_file("aotinductor", "net.pt2");
    if (kind_ != "bf16") add_file("onnxruntime", "net.onnx");
    add_file("openvino", "net.onnx");
    const Comparison all = compare(sides_, {.window_s = options_.quick ? 0.3 : 1,
                                            .windows = options_.quick ? 3 : 11,
                                            .budget_s = options_.quick ? 15 : 1e9});
    Row row = time_row(task_.about + ", " + kind_, "time per call", "ms", all, equal_);
    row.note = notes_;
    return row;
  }

 private:
  using Call = std::function<std::vector<at::Tensor>()>;

  bool lower() const { return kind_ == "bf16"; }

  void write_files() {
    if (kind_ == "int8") quantized_ = quant::quantize(model_, {.method = quant::Method::static_range}, inputs_).model;
    const Model& model = quantized_ ? *quantized_ : model_;
    ProgramOptions program{.dynamic_axes = DynamicAxes{}};
    if (lower()) program.autocast = at::kBFloat16;
    export_program(model, inputs_[0], folder_ / "net.program", program);
    export_onnx(model, inputs_[0], folder_ / "net.onnx", {.dynamic_axes = DynamicAxes{}});
    if (options_.peer_python.empty() || options_.quick || kind_ == "int8") return;
    try {
      PeerProcess peer({options_.peer_python, source_dir() + "/bench/peers/runtime.py"});
      const std::string name = task_.name + (lower() ? "-bf16" : "");
      const auto seconds = peer.ask_numbers("files " + name + " " + folder_.path(), most_seconds);
      note(c10::str("AOTInductor compiled for ", static_cast<int64_t>(seconds.at(1)), " s"));
    } catch (const c10::Error& error) {
      note("Python: " + user_message(error));
    }
  }

  Call compiled(const Model& model) const {
    CompileOptions options{.frozen = model};
    if (lower()) options.autocast = at::kBFloat16;
    const auto forward =
        std::make_shared<Compiled<std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>>>(
            [model](const std::vector<at::Tensor>& inputs) {
              const c10::InferenceMode no_gradients;
              return model.forward_all(inputs);
            },
            options);
    for (int i = 0; i < 6; ++i) (*forward)(inputs_[0]);
    return [forward, inputs = inputs_[0]] {
      auto results = (*forward)(inputs);
      sync();
      return results;
    };
  }

  Call eager(const Model& model) const {
    return [model, inputs = inputs_[0], lower = lower()] {
      const c10::InferenceMode no_gradients;
      const amp::AutocastGuard autocast(c10::kCPU, at::kBFloat16, lower);
      return model.forward_all(inputs);
    };
  }

  void add_file(const std::string& name, const std::string& file) {
    const runtime::InferenceBackend& library = runtime::backend(name);
    runtime::LoadOptions load;
    if (lower() && name != "program" && name != "aotinductor") load.autocast = at::kBFloat16;
    try {
      const std::shared_ptr<runtime::InferenceModel> model = library.load(folder_ / file, load);
      add_model(name, [model, inputs = inputs_[0]] { return model->run(inputs); });
    } catch (const std::exception& error) {
      note(name + ": " + user_message(error));
    }
  }

  void add_model(const std::string& name, const Call& call) {
    for (int i = 0; i < 3; ++i) call();
    judge(name, call());
    sides_.push_back(timed_contestant(name, [call] { call(); }));
  }

  /// int8 is judged by the signal-to-noise ratio, like in bench/quant.
  void judge(const std::string& name, const std::vector<at::Tensor>& results) {
    char text[96];
    if (kind_ == "int8") {
      const double level = quant::sqnr(expected_[0].to(torch::kDouble), results.at(0).to(torch::kDouble));
      equal_ = equal_ && level >= least_sqnr_db;
      std::snprintf(text, sizeof text, "%s %.0f dB", name.c_str(), level);
    } else {
      const runtime::Difference found = runtime::difference_of(expected_, results);
      equal_ = equal_ && found.relative <= (lower() ? 5e-2 : 1e-3);
      std::snprintf(text, sizeof text, "%s %.0e", name.c_str(), found.relative);
    }
    note(text);
  }

  void note(const std::string& text) { notes_ += (notes_.empty() ? "against eager fp32: " : ", ") + text; }

  InferenceTask task_;
  std::string kind_;
  const Options& options_;
  std::vector<std::vector<at::Tensor>> inputs_;
  Model model_;
  std::optional<Model> quantized_;
  std::vector<at::Tensor> expected_;
  Folder folder_;
  std::vector<Contestant> sides_;
  std::string notes_;
  bool equal_ = true;
};

int run(const Options& options) {
  Report report("runtime", options);
  for (const InferenceTask& task : inference_tasks()) {
    for (const std::string& kind : kinds) {
      if (!options.extra.at("task").empty() && options.extra.at("task") != task.name) continue;
      if (!options.extra.at("dtype").empty() && options.extra.at("dtype") != kind) continue;
      if (report.has_time_for(task.name + " " + kind)) report.add(Contest(task, kind, options).run());
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
      "Times forward passes from files in all inference back ends: compiled programs, compiled functions, "
      "eager libtorch, AOTInductor, ONNX\nRuntime and OpenVINO. Set BELLOWS_ONNXRUNTIME and "
      "BELLOWS_OPENVINO to the folders of their libraries if they are not found.\n--task: one of "
      "resnet18, bert-128 and bert-14. --dtype: one of fp32, bf16 and int8.",
      run, {{"task", ""}, {"dtype", ""}});
}
