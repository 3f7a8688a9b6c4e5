#include "bench/compile/tasks.h"

#include <torch/torch.h>

#include <memory>

#include "bellows/amp/autocast.h"
#include "bellows/inspect/op_counter.h"
#include "bellows/models/bert.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"
#include "bellows/models/unet.h"
#include "bench/support/bench.h"

namespace bellows::bench {
namespace {

constexpr int64_t classes = 10, samples = 8, checked_steps = 5;
constexpr double learning_rate = 1e-3, momentum = 0.9;
using Call = std::function<at::Tensor()>;

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

/// ONNX Runtime knows no autocast; no memory order of images changes a text's.
std::vector<std::string> tools_for(const Task& task) {
  const std::vector<std::string> forward = {"eager",    "channels_last", "torchscript", "compile",
                                            "freezing", "aoti",          "onnxruntime", "openvino"};
  std::vector<std::string> tools =
      task.is_step() ? std::vector<std::string>{"eager", "channels_last", "compile", "compile_all"} : forward;
  if (task.is_bert()) std::erase(tools, "channels_last");
  if (task.bf16) std::erase(tools, "onnxruntime");
  return tools;
}

}  // namespace

std::function<at::Tensor(const at::Tensor&)> forward_of(const Task& task, std::vector<at::Tensor>& weights) {
  Model model = task.model();
  models::set_formula_weights(model);
  model.eval();
  weights.clear();
  for (const auto& [name, tensor] : model.named_parameters()) weights.push_back(tensor);
  for (const auto& [name, tensor] : model.named_buffers()) weights.push_back(tensor);
  return [model, bf16 = task.bf16](const at::Tensor& x) mutable {
    const c10::InferenceMode no_autograd;
    const amp::AutocastGuard guard(c10::kCPU, at::kBFloat16, bf16);
    return model.forward(x);
  };
}

namespace {

std::shared_ptr<torch::optim::Optimizer> optimizer_of(const Task& task, const Model& model) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, tensor] : model.named_parameters()) parameters.push_back(tensor);
  if (task.is_bert())
    return std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(learning_rate));
  return std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(learning_rate).momentum(momentum));
}

Call step_of(const Task& task) {
  Model model = task.model();
  models::set_formula_weights(model);
  model.train();
  const at::Tensor x = task.input();
  const int64_t pixels = task.is_unet() ? x.size(2) * x.size(3) : 1;
  at::Tensor y = models::formula_labels("labels", x.size(0) * pixels, task.is_unet() ? 2 : classes);
  if (task.is_unet()) y = y.view({x.size(0), x.size(2), x.size(3)});
  return [model, x, y, optimizer = optimizer_of(task, model), bf16 = task.bf16]() mutable {
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const amp::AutocastGuard guard(c10::kCPU, at::kBFloat16, bf16);
      loss = torch::cross_entropy_loss(model.forward(x).to(torch::kFloat32), y);
    }
    loss.backward();
    optimizer->step();
    return loss.detach();
  };
}

}  // namespace

std::vector<Task> all_tasks() {
  const auto resnet = [] { return models::resnet18({.num_classes = classes}); };
  const auto unet = [] { return models::unet(); };
  std::vector<Task> all = {
      {"resnet18", "ResNet-18 forward, 1x224x224", resnet, [] { return images(1, 224); }, {}, 1e-4},
      {"bert-128", "BERT-base forward, 1x128", bert_without_dropout, [] { return ids(1, 128); }, {}, 1e-4},
      {"bert-14", "BERT-base forward, 1x14", bert_without_dropout, [] { return ids(1, 14); }, {}, 1e-4},
      {"unet", "U-Net forward, 1x128x128", unet, [] { return images(1, 128); }, {}, 1e-4},
      {"step-resnet18", "ResNet-18 step, 8x64x64, SGD", resnet, [] { return images(8, 64); }, {}, 1e-2},
      {"step-bert", "BERT-base step, 4x128, AdamW", bert_without_dropout, [] { return ids(4, 128); }, {}, 1e-2},
      {"step-unet", "U-Net step, 4x64x64, SGD", unet, [] { return images(4, 64); }, {}, 1e-2}};
  const size_t in_fp32 = all.size();
  for (size_t i = 0; i < in_fp32; ++i) {
    Task task = all[i];
    task.name += "-bf16";
    task.about += ", bf16";
    task.tolerance = 5e-2;
    task.bf16 = true;
    all.push_back(std::move(task));
  }
  for (Task& task : all) task.tools = tools_for(task);
  return all;
}

Task task_named(const std::string& name) {
  std::string names;
  for (const Task& task : all_tasks()) {
    if (task.name == name) return task;
    names += (names.empty() ? "" : ", ") + task.name;
  }
  TORCH_CHECK_VALUE(false, "bench compile: no task has the name ", name, ". The tasks are ", names, ".");
}

std::function<at::Tensor()> function_of(const Task& task, std::vector<at::Tensor>& weights) {
  if (task.is_step()) return step_of(task);
  return [forward = forward_of(task, weights), x = task.input()] { return forward(x); };
}

std::vector<double> checked_values(const Task& task, const std::function<at::Tensor()>& call) {
  std::vector<double> values;
  const int64_t calls = task.is_step() ? checked_steps : 1;
  for (int64_t i = 0; i < calls; ++i) {
    const at::Tensor flat = call().flatten().to(torch::kDouble).contiguous();
    for (int64_t j = 0; j < std::min(samples, flat.numel()); ++j) values.push_back(flat.const_data_ptr<double>()[j]);
  }
  return values;
}

Limit limit_of(const Task& task) {
  std::vector<at::Tensor> weights;
  const Call call = function_of(task, weights);
  call();  // gradients, optimizer state and packed weights are there afterwards
  Limit limit;
  const inspect::OpCounter counter;
  call();
  for (const inspect::OpRow& row : counter.report().rows) {
    limit.flops += static_cast<double>(row.count.flops);
    if (row.count.flops > 0) limit.bytes += static_cast<double>(row.count.bytes);
  }
  if (task.is_step()) {
    double parameters = 0;
    for (const auto& [name, tensor] : task.model().named_parameters())
      parameters += static_cast<double>(tensor.numel());
    limit.bytes +=
        parameters * sizeof(float) * (task.is_bert() ? 7 : 5);  // the gradient is read, all else written, too
  }
  limit.seconds =
      limit.flops / gemm_flops_per_s(task.bf16 ? at::kBFloat16 : at::kFloat) + limit.bytes / memory_bytes_per_s();
  return limit;
}

}  // namespace bellows::bench
