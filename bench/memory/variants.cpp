#include "bench/memory/variants.h"

#include <torch/torch.h>

#include <optional>

#include "bellows/amp/autocast.h"
#include "bellows/models/bert.h"
#include "bellows/models/blocks.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state.h"
#include "bellows/recompute/budget.h"
#include "bellows/recompute/checkpoint.h"
#include "bellows/recompute/compress.h"
#include "bellows/recompute/offload.h"
#include "bellows/tap/allocator.h"

namespace bellows::bench {

namespace {

constexpr double learning_rate = 1e-5;
constexpr int64_t classes = 10;

bool has(const std::string& name, std::string_view part) {
  return name.find(part) != std::string::npos;
}

Model without_dropout(models::BertOptions options) {
  options.num_labels = classes;
  options.hidden_dropout_prob = options.attention_probs_dropout_prob = 0;
  options.mask_padding = false;
  return models::bert(options);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Model& model, const std::string& name) {
  optim::AdamWOptions options{.lr = learning_rate};
  if (has(name, "8-bit AdamW")) options.state_dtype = optim::State::int8;
  return std::make_unique<optim::AdamW>(model.parameters(), options);
}

/// How the model's blocks are run, by the variant's name; null: directly.
models::RunBlock block_runner(const std::string& name) {
  using models::Block;
  if (has(name, "products kept"))
    return [](const Block& block, const at::Tensor& x) {
      return recompute::checkpoint({.policy = recompute::save_products}, block, x);
    };
  if (has(name, "recompute") || has(name, "budget"))
    return [](const Block& block, const at::Tensor& x) { return recompute::checkpoint(block, x); };
  return nullptr;
}

std::optional<recompute::ActivationBits> bits_of(const std::string& name) {
  if (has(name, "bf16 activations")) return recompute::ActivationBits::bf16;
  if (has(name, "int8 activations")) return recompute::ActivationBits::int8;
  if (has(name, "int4 activations")) return recompute::ActivationBits::int4;
  return std::nullopt;
}

}  // namespace

Task make_task(const std::string& name) {
  const bool small = has(name, "small");
  const auto finish = [&](std::string title, Model model, at::Tensor x) {
    models::set_formula_weights(model);
    model.train();
    return Task{std::move(title), std::move(model), x, models::formula_labels("labels", x.size(0), classes)};
  };
  if (has(name, "resnet")) {
    const int64_t batch = small ? 8 : 16, size = small ? 64 : 224;
    const models::ResNetOptions options{.num_classes = classes};
    return finish(small ? "ResNet-18, 8 x 64x64" : "ResNet-50, 16 x 224x224",
                  small ? models::resnet18(options) : models::resnet50(options),
                  models::formula_uniform("input", {batch, 3, size, size}).to(at::kFloat));
  }
  const int64_t batch = small ? 4 : 8, length = small ? 64 : 128;
  const models::BertOptions options = small ? models::bert_20m() : models::bert_base();
  return finish(small ? "BERT of 20 M, 4 x 64" : "BERT-base, 8 x 128", without_dropout(options),
                models::formula_labels("ids", batch * length, options.vocab_size).view({batch, length}));
}

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      {.name = "plain", .peer = "plain"},
      {.name = "recompute of every block", .peer = "checkpoint"},
      {.name = "recompute, products kept", .peer = "selective"},
      {.name = "recompute, budget(0.5)"},
      {.name = "bf16 activations", .tolerance = 0.02},
      {.name = "int8 activations", .tolerance = 0.02},
      {.name = "int4 activations", .tolerance = 0.2},
      {.name = "activations in a file"},
      {.name = "recompute, int8 activations", .tolerance = 0.02},
      {.name = "accumulation over 4", .tolerance = 0.1, .micro_batches = 4},
      {.name = "8-bit AdamW", .tolerance = 0.02},
      {.name = "autocast bf16", .peer = "autocast", .tolerance = 0.05},
      {.name = "autocast bf16, recompute", .peer = "autocast checkpoint", .tolerance = 0.05},
      {.name = "autocast bf16, recompute, 8-bit AdamW", .tolerance = 0.05},
  };
  return all;
}

Training::Training(const Task& task, const Variant& variant)
    : task_(task), variant_(variant), optimizer_(make_optimizer(task.model, variant.name)) {
  if (has(variant.name, "in a file")) guard_ = std::make_shared<recompute::offload>();
  if (has(variant.name, "budget")) guard_ = std::make_shared<recompute::budget>(0.5);
}

at::Tensor Training::forward(const at::Tensor& x, const at::Tensor& y) {
  std::optional<recompute::compress> compress;
  if (const auto bits = bits_of(variant_.name)) compress.emplace(recompute::CompressOptions{.bits = *bits, .seed = 1});
  const amp::autocast autocast(at::kCPU, at::kBFloat16, has(variant_.name, "autocast"));
  return torch::cross_entropy_loss(task_.model.forward(x), y);
}

double Training::run(const std::function<void()>& behind_forward) {
  models::run_blocks_by(task_.model, block_runner(variant_.name));
  double loss = 0;
  for (int64_t i = 0; i < variant_.micro_batches; ++i) {
    const int64_t n = task_.x.size(0) / variant_.micro_batches;
    const at::Tensor part = forward(task_.x.narrow(0, i * n, n), task_.y.narrow(0, i * n, n)) / variant_.micro_batches;
    if (i == 0) behind_forward();
    part.backward();
    loss += part.item<double>();
  }
  optimizer_->step();
  optimizer_->zero_grad();
  models::run_blocks_by(task_.model, nullptr);
  return loss;
}

double Training::step() {
  return run([] {});
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
