#include "bench/compile/tools.h"

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "bellows/amp/autocast.h"
#include "bellows/compile.h"
#include "bellows/models/bert.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"
#include "bellows/models/unet.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {
namespace {

constexpr int64_t classes = 10, samples = 8, checked_steps = 5;
constexpr double learning_rate = 1e-3, momentum = 0.9;
using Call = std::function<at::Tensor()>;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A forward pass or a training step by the name that bench/peers/compile_tools.py gives it.
struct Task {
  std::string name, about;
  std::function<Model()> model;
  std::function<at::Tensor()> input;
  std::vector<std::string> tools;  ///< of Python
  double tolerance;                ///< of what is compared, against the largest value of it
  bool bf16 = false;

  bool is_step() const { return name.rfind("step-", 0) == 0; }
  bool is_bert() const { return name.find("bert") != std::string::npos; }
  bool is_unet() const { return name.find("unet") != std::string::npos; }
};

Model bert_without_dropout() {
  models::BertOptions options = models::bert_base();
  options.num_labels = classes;
  options.hidden_dropout_prob = options.attention_probs_dropout_prob = 0;
  options.mask_padding = false;
  return models::bert(options);
}

at::Tensor images(int64_t batch, int64_t size) {
  return models::formula_uniform("input", {batch, 3, size, size}).to(torch::kFloat32);
}

at::Tensor ids(int64_t batch, int64_t length) {
  return models::formula_labels("ids", batch * length, 30521).view({batch, length}) + 1;
}

std::vector<Task> all_tasks() {
  const std::vector<std::string> forward = {"eager",    "channels_last", "torchscript", "compile",
                                            "freezing", "onnxruntime",   "openvino"};
  const std::vector<std::string> step = {"eager", "channels_last", "compile", "compile_all"};
  const auto resnet = [] { return models::resnet18({.num_classes = classes}); };
  const auto unet = [] { return models::unet(); };
  std::vector<Task> fp32 = {
      {"resnet18", "ResNet-18 forward, 1x224x224", resnet, [] { return images(1, 224); }, forward, 1e-4},
      {"bert-128", "BERT-base forward, 1x128", bert_without_dropout, [] { return ids(1, 128); }, forward, 1e-4},
      {"bert-14", "BERT-base forward, 1x14", bert_without_dropout, [] { return ids(1, 14); }, forward, 1e-4},
      {"unet", "U-Net forward, 1x128x128", unet, [] { return images(1, 128); }, forward, 1e-4},
      {"step-resnet18", "ResNet-18 step, 8x64x64, SGD", resnet, [] { return images(8, 64); }, step, 1e-2},
      {"step-bert", "BERT-base step, 4x128, AdamW", bert_without_dropout, [] { return ids(4, 128); }, step, 1e-2},
      {"step-unet", "U-Net step, 4x64x64, SGD", unet, [] { return images(4, 64); }, step, 1e-2}};
  std::vector<Task> all = fp32;
  for (Task task : fp32) {
    task.name += "-bf16";
    task.about += ", bf16";
    task.tolerance = 5e-2;
    task.bf16 = true;
    all.push_back(std::move(task));
  }
  return all;
}

/// Ours: a function of its own weights.
Call forward_of(const Task& task, std::vector<at::Tensor>& weights) {
  Model model = task.model();
  models::set_formula_weights(model);
  model.eval();
  for (const auto& [name, tensor] : model.named_parameters()) weights.push_back(tensor);
  for (const auto& [name, tensor] : model.named_buffers()) weights.push_back(tensor);
  return [model, x = task.input(), bf16 = task.bf16]() mutable {
    const c10::InferenceMode no_autograd;
    const amp::autocast guard(c10::kCPU, at::kBFloat16, bf16);
    return model.forward(x);
  };
}

Call step_of(const Task& task) {
  Model model = task.model();
  models::set_formula_weights(model);
  model.train();
  const at::Tensor x = task.input();
  const int64_t pixels = task.is_unet() ? x.size(2) * x.size(3) : 1;
  at::Tensor y = models::formula_labels("labels", x.size(0) * pixels, task.is_unet() ? 2 : classes);
  if (task.is_unet()) y = y.view({x.size(0), x.size(2), x.size(3)});
  std::vector<at::Tensor> parameters;
  for (const auto& [name, tensor] : model.named_parameters()) parameters.push_back(tensor);
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  if (task.is_bert())
    optimizer = std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(learning_rate));
  else
    optimizer =
        std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(learning_rate).momentum(momentum));
  return [model, x, y, optimizer, bf16 = task.bf16]() mutable {
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const amp::autocast guard(c10::kCPU, at::kBFloat16, bf16);
      loss = torch::cross_entropy_loss(model.forward(x).to(torch::kFloat32), y);
    }
    loss.backward();
    optimizer->step();
    return loss.detach();
  };
}

/// The first values of a forward pass, or the losses of the first steps.
std::vector<double> checked_values(const Task& task, const Call& call) {
  std::vector<double> values;
  const int64_t calls = task.is_step() ? checked_steps : 1;
  for (int64_t i = 0; i < calls; ++i) {
    const at::Tensor flat = call().flatten().to(torch::kDouble).contiguous();
    for (int64_t j = 0; j < std::min(samples, flat.numel()); ++j) values.push_back(flat.const_data_ptr<double>()[j]);
  }
  return values;
}

bool close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  double largest = 0, difference = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(b[i]));
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  return a.size() == b.size() && difference <= tolerance * largest;
}

Contestant side(std::string name, Call call) {
  return {std::move(name), [call = std::move(call)](int64_t n) {
            const auto start = std::chrono::steady_clock::now();
            for (int64_t i = 0; i < n; ++i) call();
            return seconds_since(start);
          }};
}

/// One task, all who do it, and what each needed until it was ready.
class Contest {
 public:
  Contest(const Task& task, const Options& options, PeerProcess* peer) : task_(task), options_(options), peer_(peer) {}

  Row run() {
    add_ours();
    if (peer_) {
      for (const std::string& tool : task_.tools) {
        if (is_wanted(tool)) add_tool(tool);
      }
      if (!task_.is_step() && is_wanted("aoti")) add_package();
    }
    Row row = time_row(task_.about, "time per call", "ms",
                       compare(sides_, {.window_s = options_.quick ? 0.5 : 2,
                                        .windows = options_.quick ? 5 : 11,
                                        .budget_s = options_.quick ? 10 : 1e9}),
                       equal_);
    row.note = "ready after: " + ready_;
    if (peer_) peer_->ask("drop");
    return row;
  }

 private:
  bool is_wanted(const std::string& tool) const {
    const std::string& wanted = options_.extra.at("tools");
    return wanted == "all" || ("," + wanted + ",").find("," + tool + ",") != std::string::npos;
  }

  void add_ours() {
    std::vector<at::Tensor> weights;
    const auto make = [&] { return task_.is_step() ? step_of(task_) : forward_of(task_, weights); };
    const Call plain = make();
    expected_ = checked_values(task_, plain);
    weights.clear();
    const Call bare = make();
    const auto start = std::chrono::steady_clock::now();
    auto compiled = compile(bare, {.generate = true, .frozen = weights});
    note_values("ours", checked_values(task_, compiled));
    while (!compiled.ready() && seconds_since(start) < 120) compiled();
    note_ready("ours", seconds_since(start));
    sides_.push_back(side("ours, compiled", compiled));
    sides_.push_back(side("ours, plain", plain));
  }

  void add_tool(const std::string& tool) {
    std::vector<double> answer;
    try {
      answer = peer_->ask_numbers("prepare " + task_.name + " " + tool, 900);
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "bench compile: ", tool, " does not do ", task_.name, ": ", error.what_without_backtrace());
    }
    note_ready(tool, answer.front());
    note_values(tool, {answer.begin() + 1, answer.end()});
    sides_.push_back({"Python, " + tool, [this, tool](int64_t n) {
                        peer_->ask("use " + task_.name + " " + tool);
                        return peer_->run(n);
                      }});
  }

  /// Compiled by Python, loaded and run here.
  void add_package() {
    const std::string file =
        (std::filesystem::temp_directory_path() / ("bench_compile_" + task_.name + ".pt2")).string();
    note_ready("AOTInductor", peer_->ask_numbers("package " + task_.name + " " + file, 900).front());
    const auto loader = std::make_shared<torch::inductor::AOTIModelPackageLoader>(file);
    const Call call = [loader, x = task_.input()] {
      const c10::InferenceMode no_autograd;
      return loader->run({x}).front();
    };
    std::filesystem::remove(file);
    note_values("AOTInductor", checked_values(task_, call));
    sides_.push_back(side("AOTInductor, C++ loader", call));
  }

  void note_values(const std::string& who, const std::vector<double>& values) {
    if (close(values, expected_, task_.tolerance)) return;
    equal_ = false;
    ready_ += "(" + who + " computes something else) ";
  }

  void note_ready(const std::string& who, double seconds) {
    char text[64];
    std::snprintf(text, sizeof text, "%s %.1f s  ", who.c_str(), seconds);
    ready_ += text;
  }

  const Task& task_;
  const Options& options_;
  PeerProcess* peer_;
  std::vector<Contestant> sides_;
  std::vector<double> expected_;
  std::string ready_;
  bool equal_ = true;
};

}  // namespace

void add_tool_rows(Report& report, const Options& options) {
  const std::string only = options.extra.at("task");
  std::unique_ptr<PeerProcess> peer;
  if (!options.peer_python.empty()) {
    peer = std::make_unique<PeerProcess>(
        std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/compile_tools.py"});
  }
  for (const Task& task : all_tasks()) {
    const bool wanted = only.empty() ? !task.bf16 || options.extra.at("bf16") == "1" : task.name == only;
    if (wanted) report.add(Contest(task, options, peer.get()).run());
  }
}

}  // namespace bellows::bench
