#include "bellows/train/step/update.h"

#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <utility>

#include "bellows/core/scaled_step.h"
#include "bellows/optim/clip.h"

namespace bellows::train {

std::vector<at::Tensor> parameters_of(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers) {
  std::vector<at::Tensor> result;
  for (const auto& optimizer : optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      result.insert(result.end(), group.params().begin(), group.params().end());
    }
  }
  return result;
}

namespace {

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) result.push_back(parameter.grad());
  }
  return result;
}

void divide(const std::vector<at::Tensor>& parameters, const at::Tensor& divisor) {
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (divisor.defined() && !gradients.empty()) at::_foreach_div_(gradients, divisor);
}

ScaledStep* as_scaled(torch::optim::Optimizer& optimizer) {
  auto* scaled = dynamic_cast<ScaledStep*>(&optimizer);
  return scaled && scaled->takes_grad_scale() ? scaled : nullptr;
}

}  // namespace

GroupMean::GroupMean(const comm::Group* ranks, int64_t share, bool stop, bool at_once, int copies)
    : ranks_(ranks), copies_(copies), stop_(stop), at_once_(at_once) {
  // Must be the same on all ranks, whose batches may differ in size.
  if (ranks_) unit_ = at::scalar_tensor(std::exp2(std::floor(std::log2(share))), at::kDouble);
}

at::Tensor GroupMean::weigh(const StepOutput& output, int64_t samples, bool alone) {
  samples_ += samples;
  if (alone && !output.is_sum && !(ranks_ && output.count.defined())) {
    single_ = output.loss.detach();
    return output.loss;
  }
  at::Tensor count = output.count;
  if (!count.defined()) count = at::scalar_tensor(samples, output.loss.options().dtype(at::kDouble));
  count = count.detach().to(at::kDouble);
  if (!unit_.defined()) unit_ = count.clamp_min(1).log2().floor().exp2();  // a power of two is exact in every dtype
  if (at_once_) {
    unit_ = (ranks_ ? comm::all_reduce(count.clone(), *ranks_).div(copies_) : count).clamp_min(1);
  } else {
    unit_ = unit_.to(count.device());
  }
  at::Tensor weight = output.is_sum ? unit_.reciprocal() : count.div(unit_);
  if (ranks_) weight = weight.mul(ranks_->size() / copies_);  // compensates for the mean over the ranks
  const at::Tensor weighed = output.loss.mul(weight.to(output.loss.scalar_type()));
  total_ = total_.defined() ? total_.add(count) : count;
  sum_ = sum_.defined() ? sum_.add(weighed.detach()) : weighed.detach();
  return weighed;
}

at::Tensor GroupMean::unit_for(int64_t samples) {
  if (!unit_.defined()) unit_ = at::scalar_tensor(std::exp2(std::floor(std::log2(samples))), at::kDouble);
  return unit_;
}

void GroupMean::exchange() {
  if (!ranks_) return;
  const at::Tensor loss = single_.defined() ? single_ : sum_;
  const at::Tensor count = total_.defined() ? total_ : at::scalar_tensor(1, loss.options().dtype(at::kDouble));
  const at::Tensor wish = at::scalar_tensor(stop_ ? 1 : 0, count.options());
  const at::Tensor rejoin = at::scalar_tensor(rejoin_ ? 1 : 0, count.options());
  const at::Tensor samples = at::scalar_tensor(samples_, count.options());
  pending_ = comm::all_reduce_async(at::stack({loss.to(at::kDouble), count, wish, samples, rejoin}), *ranks_);
}

void GroupMean::receive() {
  if (!pending_) return;
  const at::Tensor sums = std::exchange(pending_, std::nullopt)->wait();
  if (total_.defined()) {
    sum_ = sums[0].div(ranks_->size());
    total_ = sums[1].div(copies_);
  } else {
    single_ = sums[0].div(sums[1]);
  }
  stops_ = sums[2];
  all_samples_ = sums[3].div(copies_);
  rejoins_ = sums[4];
}

bool GroupMean::rejoin() {
  receive();
  return rejoins_.defined() ? rejoins_.item<double>() > 0 : rejoin_;
}

bool GroupMean::stop() {
  receive();
  return stops_.defined() ? stops_.item<double>() > 0 : stop_;
}

int64_t GroupMean::samples() {
  receive();
  return all_samples_.defined() ? static_cast<int64_t>(all_samples_.item<double>()) : samples_;
}

at::Tensor GroupMean::divisor() {
  receive();
  return total_.defined() && !at_once_ ? total_.clamp_min(1).div(unit_) : at::Tensor();
}

at::Tensor GroupMean::loss() {
  receive();
  if (at_once_ && sum_.defined()) return sum_;
  return single_.defined() ? single_ : sum_.div(divisor()).to(sum_.scalar_type());
}

Update::Update(const Recipe& recipe)
    : scaler_(amp::scaler_options(precision_policy(recipe))),
      max_grad_norm_(recipe.max_grad_norm),
      max_grad_value_(recipe.max_grad_value),
      skip_(recipe.on_nan == "skip") {}

at::Tensor Update::scaled(const at::Tensor& loss) {
  return scaler_.is_enabled() ? scaler_.scale(loss) : loss;
}

double Update::limit() const {
  return max_grad_norm_ > 0 ? max_grad_norm_ : std::numeric_limits<double>::infinity();
}

void Update::step(const Optimizers& optimizers, const at::Tensor& divisor) {
  grad_norm_ = at::Tensor();
  if (!scaler_.is_enabled()) return step_unscaled(optimizers, divisor);
  if (divisor.defined() || max_grad_norm_ > 0 || max_grad_value_ > 0) {
    for (const auto& optimizer : optimizers) scaler_.unscale_(*optimizer);
    const std::vector<at::Tensor> parameters = parameters_of(optimizers);
    divide(parameters, divisor);
    if (max_grad_value_ > 0) optim::clip_grad_value_(parameters, max_grad_value_);
    if (max_grad_norm_ > 0) grad_norm_ = optim::clip_grad_norm_(parameters, max_grad_norm_);
  }
  for (const auto& optimizer : optimizers) scaler_.step(*optimizer);
  if (skip_) {
    at::Tensor worst = scaler_.found_inf(*optimizers.front());
    for (const auto& optimizer : optimizers) worst = at::maximum(worst, scaler_.found_inf(*optimizer));
    count_skipped(worst.gt(0));
  }
  scaler_.update();
}

void Update::count_skipped(const at::Tensor& bad) {
  skipped_ = skipped_.defined() ? skipped_.add(bad.to(at::kLong)) : bad.to(at::kLong);
}

void Update::step_unscaled(const Optimizers& optimizers, const at::Tensor& divisor) {
  torch::optim::Optimizer& first = *optimizers.front();
  if (optimizers.size() == 1 && max_grad_value_ == 0 && clips()) {
    const at::Tensor scale = divisor.defined() && as_scaled(first) ? divisor.to(at::kFloat) : at::Tensor();
    if (!scale.defined()) divide(parameters_of(optimizers), divisor);
    grad_norm_ = optim::clip_and_step(first, limit(), {.grad_scale = scale, .skip_nonfinite = skip_});
  } else if (optimizers.size() == 1 && max_grad_value_ == 0) {
    ScaledStep* scaled = divisor.defined() ? as_scaled(first) : nullptr;
    if (scaled) scaled->set_grad_scale(divisor.to(at::kFloat), {});
    if (!scaled) divide(parameters_of(optimizers), divisor);
    first.step();
  } else {
    const std::vector<at::Tensor> parameters = parameters_of(optimizers);
    divide(parameters, divisor);
    if (max_grad_value_ > 0) optim::clip_grad_value_(parameters, max_grad_value_);
    if (clips()) grad_norm_ = optim::clip_grad_norm_(parameters, limit());
    const bool good = !skip_ || std::isfinite(grad_norm_.item<double>());
    for (const auto& optimizer : optimizers) {
      if (good) optimizer->step();
    }
  }
  if (skip_) count_skipped(at::isfinite(grad_norm_).logical_not());
}

int64_t Update::skipped() const {
  return skipped_.defined() ? skipped_.item<int64_t>() : 0;
}

NamedTensors Update::state() const {
  NamedTensors result;
  for (const auto& [name, value] : scaler_.state_dict()) result.emplace_back("scaler." + name, value);
  result.emplace_back("skipped_steps", at::scalar_tensor(skipped(), at::kLong));
  return result;
}

void Update::restore(const NamedTensors& state) {
  NamedTensors scaler;
  for (const auto& [name, value] : state) {
    if (name.starts_with("scaler.")) scaler.emplace_back(name.substr(7), value);
    if (name == "skipped_steps") skipped_ = value.clone();
  }
  if (scaler_.is_enabled()) scaler_.load_state_dict(scaler);
}

}  // namespace bellows::train
