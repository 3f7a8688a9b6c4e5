#include "bellows/train/train_loop.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <c10/util/irange.h>

#include <chrono>
#include <cmath>

#include "bellows/amp/autocast.h"
#include "bellows/checkpoint/rng.h"
#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/optim/state.h"

namespace bellows::train {

namespace {

using Clock = std::chrono::steady_clock;

/// The guard that the policy asks for; none for fp32, so that a guard of the caller's stays in force, and none for low
/// weights: amp::apply() gave the model its own.
std::unique_ptr<amp::autocast> make_precision_guard(const amp::Policy& policy, c10::Device device) {
  if (!policy.autocast || policy.low_weights) return nullptr;
  return std::make_unique<amp::autocast>(device.type(), policy.dtype);
}

/// On the device and in the memory order of the recipe; most loaders deliver it so.
data::Batch placed(data::Batch batch, const Recipe& recipe, c10::Device device) {
  batch = batch.to(device);
  if (!recipe.channels_last) return batch;
  NamedTensors tensors = batch.tensors();
  bool changed = false;
  for (auto& [name, tensor] : tensors) {
    if (tensor.dim() != 4 || tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) continue;
    tensor = tensor.contiguous(at::MemoryFormat::ChannelsLast);
    changed = true;
  }
  return changed ? data::Batch(std::move(tensors), batch.ids(), batch.epoch(), batch.index()) : batch;
}

/// Those whose names begin with `prefix`, without it.
NamedTensors below(const NamedTensors& tensors, const std::string& prefix) {
  NamedTensors result;
  for (const auto& [name, value] : tensors) {
    if (name.starts_with(prefix)) result.emplace_back(name.substr(prefix.size()), value);
  }
  return result;
}

optim::Schedule make_schedule(const Recipe& recipe, int64_t steps_per_epoch) {
  const auto warmup = static_cast<int64_t>(std::llround(recipe.warmup_epochs * static_cast<double>(steps_per_epoch)));
  return warmup > 0 ? optim::linear_warmup(warmup) : optim::constant_schedule();
}

}  // namespace

Evaluation evaluate(const Model& model, data::Loader& loader, const Recipe& recipe) {
  const auto begin = Clock::now();
  const c10::Device device = parse_device(recipe.device);
  const EvalMode eval_mode(model);
  const inference_mode no_graph;
  const amp::Policy policy = precision_policy(recipe);
  Evaluation result;
  at::Tensor loss = at::scalar_tensor(0, at::TensorOptions(device).dtype(at::kDouble));
  at::Tensor correct = at::scalar_tensor(0, at::TensorOptions(device).dtype(at::kLong));
  loader.start(0);
  while (auto next = loader.next()) {
    const data::Batch batch = placed(std::move(*next), recipe, device);
    const auto precision = make_precision_guard(policy, device);
    const at::Tensor logits = model.forward(batch["image"]);
    loss.add_(at::cross_entropy_loss(logits, batch["label"]), static_cast<double>(batch.size()));
    correct.add_(count_hits(logits, batch["label"]));
    result.samples += batch.size();
  }
  TORCH_CHECK_VALUE(result.samples > 0, "evaluate: none of the ", loader.size(), " samples could be used.");
  result.loss = loss.item<double>() / static_cast<double>(result.samples);
  result.accuracy = static_cast<double>(correct.item<int64_t>()) / static_cast<double>(result.samples);
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return result;
}

TrainLoop::TrainLoop(Job job)
    : job_(std::move(job)),
      device_(parse_device(job_.recipe.device)),
      loader_(job_.train.channels_last(job_.recipe.channels_last).loader()),
      policy_(precision_policy(job_.recipe)),
      scaler_(amp::scaler_options(policy_)),
      schedule_(make_schedule(job_.recipe, loader_.batches_per_epoch())),
      metrics_(job_.recipe.train_metrics) {
  TORCH_CHECK_VALUE(job_.optimizer && job_.loss, "TrainLoop: expected an optimizer and a loss, got null.");
  for (const auto& group : job_.optimizer->param_groups()) base_lr_.push_back(group.options().get_lr());
  if (!job_.model.training()) job_.model.train();  // parts that the caller froze stay so
}

void TrainLoop::step() {
  const data::Batch batch = next_batch();
  set_factor(schedule_(step_));
  job_.optimizer->zero_grad();
  const StepOutput output = forward(batch);
  backward_and_step(output.loss);
  last_loss_ = output.loss.detach();
  losses_.push_back(last_loss_);
  if (batch.contains("label")) metrics_.update(last_loss_, output.predictions, batch["label"]);
  last_batch_size_ = batch.size();
  samples_ += batch.size();
  ++step_;
}

StepOutput TrainLoop::forward(const data::Batch& batch) const {
  const auto precision = make_precision_guard(policy_, device_);
  return job_.loss(batch);
}

void TrainLoop::backward_and_step(const at::Tensor& loss) {
  if (!scaler_.is_enabled()) {
    loss.backward();
    job_.optimizer->step();
    return;
  }
  scaler_.scale(loss).backward();
  scaler_.step(*job_.optimizer);
  scaler_.update();
}

void TrainLoop::run_steps(int64_t n) {
  for (int64_t i = 0; i < n; ++i) step();
}

data::Batch TrainLoop::next_batch() {
  for (bool whole_epoch = false;; whole_epoch = batch_ == 0) {
    if (!started_) loader_.start(epoch_, batch_);
    started_ = true;
    std::optional<data::Batch> batch = loader_.next();
    const bool at_end = !batch || batch->index() + 1 >= loader_.batches_per_epoch();
    TORCH_CHECK_VALUE(batch || !whole_epoch, "TrainLoop: no sample of epoch ", epoch_ + 1, " could be used (",
                      loader_.size(), " in the data set). Check the data, or set bad_samples to fail to see why.");
    if (batch) batch_ = batch->index() + 1;
    if (at_end) {  // the next epoch starts with the next step: nothing is loaded behind an evaluation's back
      skipped_ += loader_.skipped();
      ++epoch_;
      batch_ = 0;
      started_ = false;
    }
    if (batch) return placed(std::move(*batch), job_.recipe, device_);
  }
}

void TrainLoop::set_factor(double factor) {
  if (factor == factor_) return;
  factor_ = factor;
  auto& groups = job_.optimizer->param_groups();
  for (const auto g : c10::irange(base_lr_.size())) groups[g].options().set_lr(base_lr_[g] * factor);
}

std::vector<double> TrainLoop::take_losses() {
  if (losses_.empty()) return {};
  const at::Tensor values = at::stack(losses_).to(at::kCPU, at::kDouble);
  const int64_t first = step_ - static_cast<int64_t>(losses_.size());
  losses_.clear();
  std::vector<double> result(values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel());
  for (const auto i : c10::irange(result.size())) {
    TORCH_CHECK(std::isfinite(result[i]), "train: the loss became ", std::isnan(result[i]) ? "NaN" : "infinite",
                " at step ", first + static_cast<int64_t>(i) + 1, " (learning rate ", optim::get_lr(*job_.optimizer),
                "). Try a smaller lr, a warm-up, or precision fp32. A checkpoint that was written is from before.");
  }
  return result;
}

Evaluation TrainLoop::evaluate() {
  TORCH_CHECK_VALUE(job_.eval, "TrainLoop::evaluate: there is no held-out data. Set eval_data.");
  if (!eval_loader_) eval_loader_ = job_.eval->channels_last(job_.recipe.channels_last).loader();
  return train::evaluate(job_.model, *eval_loader_, job_.recipe);
}

checkpoint::State TrainLoop::state() const {
  NamedTensors extra = {{"samples", at::scalar_tensor(samples_, at::kLong)},
                        {"skipped", at::scalar_tensor(skipped_samples(), at::kLong)}};
  for (const auto& [name, value] : scaler_.state_dict()) extra.emplace_back("scaler." + name, value);
  for (const auto& [name, value] : metrics_.state()) extra.emplace_back("train_metrics." + name, value);
  return {.model = job_.model.state_dict(),
          .optimizer = optim::state_dict(*job_.optimizer),
          .rng = checkpoint::rng_state(),
          .extra = std::move(extra),
          .step = step_,
          .epoch = epoch_,
          .batch = batch_,
          .recipe = job_.recipe.to_yaml()};
}

void TrainLoop::restore(const checkpoint::State& state) {
  checkpoint::restore_model(job_.model, state.model);
  optim::load_state_dict(*job_.optimizer, state.optimizer);
  for (const auto& [name, value] : state.extra) {
    if (name == "samples") samples_ = value.item<int64_t>();
    if (name == "skipped") skipped_ = value.item<int64_t>();
  }
  if (scaler_.is_enabled()) scaler_.load_state_dict(below(state.extra, "scaler."));
  metrics_.restore(below(state.extra, "train_metrics."));
  step_ = state.step;
  epoch_ = state.epoch;
  batch_ = state.batch;
  started_ = false;
  losses_.clear();
  last_loss_ = at::Tensor();
  factor_ = step_ > 0 ? schedule_(step_ - 1) : 1;  // the optimizer came back with this one's rates
  checkpoint::set_rng_state(state.rng);
}

}  // namespace bellows::train
