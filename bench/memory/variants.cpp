#include "bench/memory/variants.h"

#include <torch/torch.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "bellows/amp/autocast.h"
#include "bellows/models/bert.h"
#include "bellows/models/encoder_decoder.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"
#include "bellows/optim/state/state.h"
#include "bellows/optim/step_in_backward.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/recompute/budget.h"
#include "bellows/recompute/offload.h"
#include "bellows/tap/allocator.h"

namespace bellows::bench {

namespace {

constexpr double learning_rate = 1e-5;
constexpr int64_t classes = 10;

Model without_dropout(models::BertOptions options) {
  options.num_labels = classes;
  options.hidden_dropout_prob = options.attention_probs_dropout_prob = 0;
  options.mask_padding = false;
  return models::bert(options);
}

at::Tensor recomputed(const models::Block& block, const at::Tensor& x) {
  return recompute::checkpoint(block, x);
}

at::Tensor recomputed_but_products(const models::Block& block, const at::Tensor& x) {
  return recompute::checkpoint({.policy = recompute::save_products}, block, x);
}

Model series_model(bool fused) {
  return models::encoder_decoder(
      {.in_features = 188, .num_classes = 2, .start_steps = 12, .dropout = 0, .fused = fused});
}

/// A ResNet's forward pass by its parts, all residual blocks in so many segments. Python's checkpoint_sequential does the same.
at::Tensor resnet_in_segments(const Model& resnet, int64_t segments, const at::Tensor& x) {
  const auto parts = resnet.module()->named_children();
  std::vector<recompute::Layer> blocks;
  for (const char* stage : {"layer1", "layer2", "layer3", "layer4"}) {
    for (const auto& block : *parts[stage]->as<torch::nn::Sequential>())
      blocks.push_back([one = block](const at::Tensor& y) mutable { return one.forward(y); });
  }
  const at::Tensor stem =
      parts["bn1"]->as<torch::nn::BatchNorm2d>()->forward(parts["conv1"]->as<torch::nn::Conv2d>()->forward(x));
  const at::Tensor pooled = torch::max_pool2d(at::Tensor(stem).relu_(), 3, 2, 1);
  const at::Tensor y = recompute::checkpoint_sequential(blocks, segments, pooled);
  return parts["fc"]->as<torch::nn::Linear>()->forward(torch::adaptive_avg_pool2d(y, {1, 1}).flatten(1));
}

template <class Optimizer, class OptimizerOptions>
MakeOptimizer make(OptimizerOptions options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

std::vector<Variant> combined_variants(const MakeOptimizer& adamw8) {
  return {
      {.name = "autocast bf16", .peer = "autocast", .tolerance = 0.05, .first_only = true, .autocast = true},
      {.name = "autocast bf16, checkpointing",
       .peer = "autocast checkpoint",
       .like = "autocast bf16",
       .run_block = recomputed,
       .autocast = true},
      {.name = "int8 activations, 8-bit AdamW, optimizer in backward",
       .tolerance = 0.05,
       .bits = recompute::ActivationBits::int8,
       .steps_in_backward = true,
       .optimizer = adamw8},
      {.name = "autocast bf16, checkpointing, 8-bit AdamW, optimizer in backward",
       .tolerance = 0.02,
       .like = "autocast bf16",
       .run_block = recomputed,
       .autocast = true,
       .steps_in_backward = true,
       .optimizer = adamw8},
  };
}

std::vector<Variant> deep_variants() {
  using recompute::ActivationBits;
  const MakeOptimizer adamw8 = adamw({.state_dtype = optim::State::int8});
  std::vector<Variant> all = {
      {.name = "plain", .peer = "plain"},
      {.name = "checkpointing of every block", .peer = "checkpoint", .run_block = recomputed},
      {.name = "selective checkpointing, matmuls saved", .peer = "selective", .run_block = recomputed_but_products},
      {.name = "selective checkpointing, budget 0.5", .run_block = recomputed, .budget = true},
      {.name = "bf16 activations", .tolerance = 0.02, .bits = ActivationBits::bf16},
      {.name = "int8 activations", .tolerance = 0.02, .bits = ActivationBits::int8, .noise = 0.06},
      {.name = "int4 activations", .first_only = true, .bits = ActivationBits::int4, .noise = 2},
      {.name = "activations offloaded to a file", .offloads = true},
      {.name = "checkpointing, int8 activations",
       .tolerance = 0.02,
       .run_block = recomputed,
       .bits = ActivationBits::int8},
      {.name = "bf16 weights, stochastic rounding",
       .tolerance = 0.05,
       .model = {.bf16_weights = true},
       .optimizer = adamw({.stochastic_rounding = true})},
      {.name = "gradient accumulation, 4 steps", .tolerance = 0.1, .micro_batches = 4},
      {.name = "AdamW every 4th step", .first_only = true, .update_every = 4},
      {.name = "AdamW every 16th step", .first_only = true, .update_every = 16},
      {.name = "8-bit AdamW", .tolerance = 0.02, .optimizer = adamw8},
      {.name = "4-bit AdamW", .tolerance = 0.02, .optimizer = adamw({.state_dtype = optim::State::int4})},
      {.name = "optimizer in backward", .steps_in_backward = true},
  };
  std::ranges::move(combined_variants(adamw8), std::back_inserter(all));
  return all;
}

Variant& named(std::vector<Variant>& variants, const std::string& name) {
  return *std::ranges::find(variants, name, &Variant::name);
}

/// Two blocks a segment. Batch norms over few images make small gradients change their signs: what rounds more has other
/// losses, which still have to fall; and bf16 weights train as autocast does. Its optimizer is too small a part of a step
/// for what the 16th step would save to be seen.
std::vector<Variant> resnet_variants(int64_t blocks) {
  std::vector<Variant> all = deep_variants();
  std::erase_if(all, [](const Variant& variant) { return variant.update_every == 16; });
  named(all, "4-bit AdamW").tolerance = 0.1;
  named(all, "int8 activations").noise = 0.02;
  named(all, "int4 activations").noise = 0.25;
  named(all, "bf16 weights, stochastic rounding").like = "autocast bf16";
  all.insert(all.begin() + 2,
             {.name = "checkpointing of every two blocks", .peer = "sequential", .segments = blocks / 2});
  return all;
}

/// Each adds to the one above, but for the two SGDs, which stand beside Adam: their losses are its first one, and no more.
std::vector<Variant> series_variants() {
  const auto adam = make<torch::optim::Adam>(torch::optim::AdamOptions(learning_rate));
  const auto sgd = make<torch::optim::SGD>(torch::optim::SGDOptions(learning_rate).momentum(0.9));
  const auto fused_sgd = make<optim::SGD>(optim::SGDOptions{.lr = learning_rate, .momentum = 0.9});
  const auto fused_adam = make<optim::Adam>(optim::AdamOptions{.lr = learning_rate});
  const ModelWays fused{.fused_layers = true};
  return {
      {.name = "baseline (Adam)", .peer = "plain", .optimizer = adam},
      {.name = "AMP", .peer = "autocast", .tolerance = 0.05, .autocast = true, .optimizer = adam},
      {.name = "AMP, fused layer norm", .tolerance = 0.05, .model = fused, .autocast = true, .optimizer = adam},
      {.name = "AMP, fused layer norm, SGD", .tolerance = 0.3, .model = fused, .autocast = true, .optimizer = sgd},
      {.name = "AMP, fused layer norm, fused SGD",
       .peer = "autocast fused-sgd",
       .tolerance = 0.3,
       .model = fused,
       .autocast = true,
       .optimizer = fused_sgd},
      {.name = "AMP, fused layer norm, fused Adam",
       .peer = "autocast fused-adam",
       .tolerance = 0.05,
       .model = fused,
       .autocast = true,
       .optimizer = fused_adam},
      {.name = "fused layer norm, fused Adam, no AMP", .tolerance = 1e-4, .model = fused, .optimizer = fused_adam},
  };
}

}  // namespace

Task make_task(const std::string& name, const ModelWays& ways) {
  const bool small = name.ends_with("-small");
  const at::ScalarType dtype = ways.bf16_weights ? at::kBFloat16 : at::kFloat;
  const auto finish = [&](std::string title, Model model, const at::Tensor& x, int64_t labels) {
    models::set_formula_weights(model);
    model.module()->to(dtype);
    model.train();
    return Task{name, std::move(title), std::move(model), x, models::formula_labels("labels", x.size(0), labels)};
  };
  if (name.starts_with("series-")) {
    const int64_t batch = std::stoll(name.substr(7));
    return finish("encoder-decoder, " + std::to_string(batch) + " x 13 x 188", series_model(ways.fused_layers),
                  models::formula_uniform("input", {batch, 13, 188}).to(dtype), 2);
  }
  if (name.starts_with("resnet")) {
    const int64_t batch = small ? 8 : 16, size = small ? 64 : 224;
    const models::ResNetOptions options{.num_classes = classes};
    return finish(small ? "ResNet-18, 8 x 64x64" : "ResNet-50, 16 x 224x224",
                  small ? models::resnet18(options) : models::resnet50(options),
                  models::formula_uniform("input", {batch, 3, size, size}).to(dtype), classes);
  }
  const int64_t batch = small ? 4 : 8, length = small ? 64 : 128;
  const models::BertOptions options = small ? models::bert_20m() : models::bert_base();
  return finish(small ? "BERT with 20 M parameters, 4 x 64" : "BERT-base, 8 x 128", without_dropout(options),
                models::formula_labels("ids", batch * length, options.vocab_size).view({batch, length}), classes);
}

MakeOptimizer adamw(optim::AdamWOptions options) {
  options.lr = learning_rate;
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<optim::AdamW>(std::move(parameters), options);
  };
}

const std::vector<Variant>& variants_of(const std::string& task) {
  static const std::vector<Variant> bert = deep_variants(), series = series_variants();
  static const std::vector<Variant> resnet18 = resnet_variants(8), resnet50 = resnet_variants(16);
  if (task.starts_with("resnet")) return task.ends_with("-small") ? resnet18 : resnet50;
  return task.starts_with("series-") ? series : bert;
}

Training::Training(const Task& task, const Variant& variant)
    : task_(variant.model == ModelWays{} ? task : make_task(task.name, variant.model)),
      variant_(variant),
      optimizer_(variant.optimizer(task_.model.parameters())) {
  if (variant.offloads) guard_ = std::make_shared<recompute::OffloadGuard>();
  if (variant.budget) guard_ = std::make_shared<recompute::BudgetGuard>(0.5);
}

at::Tensor Training::forward(const at::Tensor& x, const at::Tensor& y) {
  std::optional<recompute::CompressGuard> compress;
  if (variant_.bits) compress.emplace(recompute::CompressOptions{.bits = *variant_.bits, .seed = seed_});
  const amp::AutocastGuard autocast(at::kCPU, at::kBFloat16, variant_.autocast);
  const at::Tensor logits =
      variant_.segments > 0 ? resnet_in_segments(task_.model, variant_.segments, x) : task_.model.forward(x);
  return torch::cross_entropy_loss(logits, y);
}

double Training::run(const std::function<void()>& behind_forward) {
  // Hooks and the way of the blocks stay for one step: other trainings share the model.
  models::run_blocks_by(task_.model, variant_.run_block);
  const auto stepping = variant_.steps_in_backward ? optim::step_in_backward(*optimizer_) : nullptr;
  double loss = 0;
  for (int64_t i = 0; i < variant_.micro_batches; ++i) {
    const int64_t n = task_.x.size(0) / variant_.micro_batches;
    const at::Tensor part = forward(task_.x.narrow(0, i * n, n), task_.y.narrow(0, i * n, n)) / variant_.micro_batches;
    if (i == 0) behind_forward();
    part.backward();
    loss += part.item<double>();
  }
  if (!stepping && ++steps_ % variant_.update_every == 0) {
    optimizer_->step();
    optimizer_->zero_grad();
  }
  models::run_blocks_by(task_.model, nullptr);
  return loss;
}

at::Tensor Training::first_gradient(uint64_t seed) {
  models::set_formula_weights(task_.model);
  models::run_blocks_by(task_.model, variant_.run_block);
  optimizer_->zero_grad();
  seed_ = seed;
  forward(task_.x, task_.y).backward();
  models::run_blocks_by(task_.model, nullptr);
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : task_.model.named_parameters()) {
    const bool first = name.find("layer1.0.") != std::string::npos || name.find("layer.0.") != std::string::npos;
    if (first) gradients.push_back(parameter.grad().flatten());
  }
  at::Tensor result = at::cat(gradients);
  optimizer_->zero_grad();
  return result;
}

double Training::step() {
  return run([] {});
}

std::vector<double> Training::first_losses(int64_t count) {
  models::set_formula_weights(task_.model);
  optimizer_->zero_grad();  // another training may have left some between its updates
  std::vector<double> losses;
  for (int64_t i = 0; i < count; ++i) losses.push_back(step());
  return losses;
}

StepBytes Training::measured_step() {
  tap::install_cpu_allocator();
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  tap::reset_cpu_allocation_peak();
  StepBytes bytes;
  run([&] { bytes.kept = tap::cpu_allocation_counters().current_bytes - before; });
  bytes.peak = tap::cpu_allocation_counters().peak_bytes - before;
  for (const auto& [name, tensor] : optim::state_dict(*optimizer_))
    bytes.state += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace bellows::bench
