#include "bellows/amp/grad_scaler.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/core/scaled_step.h"
#include "bellows/core/sharded_gradients.h"

namespace bellows::amp {

namespace {

void check_init_scale(double scale, const char* where) {
  TORCH_CHECK_VALUE(std::isfinite(scale) && scale > 0, where, ": expected a scale above 0, got ", scale,
                    ". 65536 is usual.");
}

void check_growth_factor(double factor, const char* where) {
  TORCH_CHECK_VALUE(std::isfinite(factor) && factor > 1, where, ": expected a growth_factor above 1, got ", factor,
                    ". 2 is usual.");
}

void check_backoff_factor(double factor, const char* where) {
  TORCH_CHECK_VALUE(factor > 0 && factor < 1, where, ": expected a backoff_factor between 0 and 1, got ", factor,
                    ". 0.5 is usual.");
}

void check_growth_interval(int64_t steps, const char* where) {
  TORCH_CHECK_VALUE(steps >= 1, where, ": expected a growth_interval of at least 1 step, got ", steps,
                    ". 2000 is usual.");
}

void check_options(const GradScalerOptions& options, const char* where) {
  check_init_scale(options.init_scale, where);
  check_growth_factor(options.growth_factor, where);
  check_backoff_factor(options.backoff_factor, where);
  check_growth_interval(options.growth_interval, where);
}

/// The tensor that contains a gradient's values.
at::Tensor values_of(const at::Tensor& parameter, bool allow_fp16) {
  at::Tensor& grad = parameter.mutable_grad();
  TORCH_CHECK_VALUE(allow_fp16 || grad.scalar_type() != at::kHalf, "GradScaler::unscale_: a parameter of shape ",
                    parameter.sizes(),
                    " has an fp16 gradient, which would underflow when it is unscaled. Keep the weights in fp32 "
                    "(autocast, or policy O2 with MasterWeights), or set allow_fp16 for a pure fp16 model.");
  if (grad.layout() == at::kStrided) return grad;
  TORCH_CHECK_VALUE(grad.layout() == at::kSparse, "GradScaler: expected a dense or sparse COO gradient, got layout ",
                    grad.layout(), " (parameter of shape ", parameter.sizes(), ").");
  // When the optimizer coalesces, values with equal indices are added; in fp16 the sum may overflow.
  if (grad.scalar_type() == at::kHalf) grad = grad.coalesce();
  return grad._values();
}

constexpr const char* load_name = "GradScaler::load_state_dict";

/// Reads all entries of a state by name. Checks that each is one number in the range of float.
std::map<std::string, double> read_state(const NamedTensors& state) {
  TORCH_CHECK_VALUE(!state.empty(), load_name,
                    ": the state is empty, possibly because a disabled GradScaler saved it.");
  const std::vector<std::string> keys = {"scale", "growth_factor", "backoff_factor", "growth_interval",
                                         "_growth_tracker"};
  std::map<std::string, double> values;
  for (const auto& [key, tensor] : state) {
    TORCH_CHECK_VALUE(std::find(keys.begin(), keys.end(), key) != keys.end(), load_name, ": unknown entry \"", key,
                      "\".", did_you_mean(key, keys));
    TORCH_CHECK_VALUE(tensor.defined() && tensor.numel() == 1, load_name, ": expected one number in \"", key, "\".");
    values[key] = tensor.item<double>();
    TORCH_CHECK_VALUE(std::abs(values[key]) <= std::numeric_limits<float>::max(), load_name, ": \"", key, "\" is ",
                      values[key], ". The state cannot be used.");
  }
  for (const std::string& key : keys) {
    TORCH_CHECK_VALUE(values.count(key), load_name, ": the entry \"", key,
                      "\" is missing. Is this the state of a GradScaler?");
  }
  return values;
}

/// Copies of a scalar, one per device.
class Replicas {
 public:
  explicit Replicas(at::Tensor master) : master_(std::move(master)) {}
  at::Tensor& on(c10::Device device) {
    at::Tensor& copy = copies_[device];
    if (!copy.defined()) copy = master_.to(device, master_.scalar_type(), /*non_blocking=*/true, /*copy=*/true);
    return copy;
  }
  std::unordered_map<c10::Device, at::Tensor> take() { return std::move(copies_); }

 private:
  at::Tensor master_;
  std::unordered_map<c10::Device, at::Tensor> copies_;
};

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  check_options(options, "GradScaler");
}

void GradScaler::place(c10::Device device) {
  if (scale_.defined()) return;
  growth_tracker_ = at::full({}, init_growth_tracker_, at::TensorOptions(device).dtype(at::kInt));
  scale_ = at::full({}, options_.init_scale, at::TensorOptions(device).dtype(at::kFloat));
}

void GradScaler::check_placed(std::string_view function) const {
  TORCH_CHECK_VALUE(scale_.defined(), "GradScaler::", function, ": scale() has not been called yet. Call ",
                    "scaler.scale(loss).backward() earlier in the iteration.");
}

at::Tensor GradScaler::scale(const at::Tensor& output) {
  return options_.enabled ? scale(at::TensorList(output)).front() : output;
}

std::vector<at::Tensor> GradScaler::scale(at::TensorList outputs) {
  if (!options_.enabled) return outputs.vec();
  forget_failed_steps();
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& output : outputs) {
    TORCH_CHECK_VALUE(output.defined() && output.is_floating_point(),
                      "GradScaler::scale: expected a floating-point loss, got ",
                      output.defined() ? c10::str(output.scalar_type()) : "an undefined tensor", ".");
    place(output.device());
    scaled.push_back(at::mul(output, scale_.to(output.device(), scale_.scalar_type(), /*non_blocking=*/true)));
  }
  return scaled;
}

/// Their stage describes gradients that are completely or partly unscaled. The gradients of the new iteration are not.
void GradScaler::forget_failed_steps() {
  for (auto& [optimizer, state] : optimizers_) {
    if (state.failed) state = {};
  }
}

struct GradScaler::Gradients {
  std::unordered_map<c10::Device, std::unordered_map<at::ScalarType, std::vector<at::Tensor>>> lists;
  std::vector<const ShardedGradients*> owners;
};

GradScaler::Gradients GradScaler::gradients_of(torch::optim::Optimizer& optimizer, bool allow_fp16) {
  const no_grad no_graph;
  Gradients result;
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      const at::Tensor values = values_of(parameter, allow_fp16);
      result.lists[values.device()][values.scalar_type()].push_back(values);
    }
  }
  result.owners = gradient_owners(parameters);
  TORCH_CHECK_VALUE(!result.lists.empty() || !result.owners.empty(),
                    "GradScaler: no inf checks were recorded for this optimizer: none of its ", parameters.size(),
                    " parameters has a gradient. Call scaler.scale(loss).backward() before step().");
  return result;
}

GradScaler::ByDevice GradScaler::check_gradients(const Gradients& gradients, const at::Tensor& inverse_scale) const {
  const no_grad no_graph;
  Replicas inverse(inverse_scale), found(at::zeros_like(scale_));
  for (const auto& [device, by_dtype] : gradients.lists) {
    for (const auto& [dtype, grads] : by_dtype) {
      at::_amp_foreach_non_finite_check_and_unscale_(grads, found.on(device), inverse.on(device));
    }
  }
  ByDevice result = found.take();
  for (const ShardedGradients* owner : gradients.owners) {  // either all ranks skip a step or none
    const at::Tensor worst = owner->over_ranks(sum_of(result), ShardedGradients::Over::max);
    result = {{scale_.device(), worst}};
  }
  return result;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  check_placed("unscale_");
  PerOptimizer& state = optimizers_[&optimizer];
  TORCH_CHECK_VALUE(state.stage != Stage::unscaled,
                    "GradScaler: unscale_() has already been called on this optimizer since the last update(). Another "
                    "call would divide the gradients by the scale a second time.");
  TORCH_CHECK_VALUE(state.stage != Stage::stepped,
                    "GradScaler: unscale_() is being called after step(). Call unscale_() between backward() and "
                    "step(), and call update() at the end of each iteration.");
  TORCH_CHECK_VALUE(
      state.stage != Stage::unscaling,
      "GradScaler::unscale_: an earlier call failed halfway, so some gradients are unscaled and others are "
      "not. Call zero_grad(), and start the next iteration with scale().");
  // In float64, because a float32 reciprocal may be inexact if division is compiled for speed.
  const at::Tensor inverse = at::reciprocal(scale_.to(at::kDouble)).to(at::kFloat);
  const Gradients gradients = gradients_of(optimizer, options_.allow_fp16);
  state.failed = true;
  state.stage = Stage::unscaling;
  state.found_inf = check_gradients(gradients, inverse);
  state.stage = Stage::unscaled;
  state.failed = false;
}

at::Tensor GradScaler::sum_of(const ByDevice& found_inf) const {
  at::Tensor sum = at::zeros_like(scale_);
  for (const auto& [device, found] : found_inf) sum.add_(found.to(scale_.device(), at::kFloat, true));
  return sum;
}

at::Tensor GradScaler::step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure) {
  if (!options_.enabled) return optimizer.step(std::move(closure));
  TORCH_CHECK_VALUE(!closure,
                    "GradScaler::step: closures are not supported while scaling is enabled, because gradients "
                    "computed in a closure would not be unscaled. Call backward() before step().");
  check_placed("step");
  PerOptimizer& state = optimizers_[&optimizer];
  TORCH_CHECK_VALUE(state.stage != Stage::stepped,
                    "GradScaler: step() has already been called on this optimizer since the last update(). Call "
                    "update() once at the end of each iteration.");
  at::Tensor result;
  auto* scaled = dynamic_cast<ScaledStep*>(&optimizer);
  if (scaled && scaled->takes_grad_scale() && state.stage != Stage::unscaling) {
    state.failed = true;
    result = step_scaled(optimizer, *scaled, state);
  } else {
    if (state.stage != Stage::unscaled) unscale_(optimizer);
    state.failed = true;
    if (sum_of(state.found_inf).item<float>() == 0) result = optimizer.step();
  }
  state.failed = false;
  state.stage = Stage::stepped;
  return result;
}

at::Tensor GradScaler::step_scaled(torch::optim::Optimizer& optimizer, ScaledStep& scaled, PerOptimizer& state) {
  at::Tensor scale_to_remove;
  if (state.stage == Stage::ready) {
    state.found_inf = check_gradients(gradients_of(optimizer, /*allow_fp16=*/true), at::ones_like(scale_));
    scale_to_remove = scale_;
  }
  scaled.set_grad_scale(std::move(scale_to_remove), sum_of(state.found_inf));
  return optimizer.step();
}

at::Tensor GradScaler::found_inf(const torch::optim::Optimizer& optimizer) const {
  const auto found = optimizers_.find(&optimizer);
  TORCH_CHECK_VALUE(found != optimizers_.end() && !found->second.found_inf.empty(),
                    "GradScaler::found_inf: this optimizer has not been checked since the last update(). Call "
                    "found_inf() between step() and update().");
  return sum_of(found->second.found_inf);
}

void GradScaler::update() {
  if (!options_.enabled) return;
  check_placed("update");
  at::Tensor found = at::zeros_like(scale_);
  bool any = false;
  for (const auto& [optimizer, state] : optimizers_) {
    any = any || !state.found_inf.empty();
    found.add_(sum_of(state.found_inf));
  }
  TORCH_CHECK_VALUE(any,
                    "GradScaler::update: no inf checks were recorded before update(). Call step() (or unscale_()) for "
                    "at least one optimizer first.");
  at::_amp_update_scale_(scale_, growth_tracker_, found, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  optimizers_.clear();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  check_init_scale(new_scale, "GradScaler::update");
  check_placed("update");
  scale_.fill_(new_scale);
  optimizers_.clear();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!options_.enabled) return;
  check_placed("update");
  TORCH_CHECK_VALUE(new_scale.defined() && new_scale.numel() == 1 && !new_scale.requires_grad(),
                    "GradScaler::update: expected a new_scale of one element without requires_grad, got ",
                    new_scale.defined() ? c10::str("shape ", new_scale.sizes()) : "an undefined tensor",
                    new_scale.defined() && new_scale.requires_grad() ? " with requires_grad" : "", ".");
  scale_.copy_(new_scale.reshape({}));
  optimizers_.clear();
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item<double>() : options_.init_scale;
}

int64_t GradScaler::get_growth_tracker() const {
  if (!options_.enabled) return 0;
  return growth_tracker_.defined() ? growth_tracker_.item<int64_t>() : init_growth_tracker_;
}

void GradScaler::set_growth_factor(double factor) {
  check_growth_factor(factor, "GradScaler::set_growth_factor");
  options_.growth_factor = factor;
}

void GradScaler::set_backoff_factor(double factor) {
  check_backoff_factor(factor, "GradScaler::set_backoff_factor");
  options_.backoff_factor = factor;
}

void GradScaler::set_growth_interval(int64_t steps) {
  check_growth_interval(steps, "GradScaler::set_growth_interval");
  options_.growth_interval = steps;
}

NamedTensors GradScaler::state_dict() const {
  if (!options_.enabled) return {};
  return {{"scale", at::scalar_tensor(get_scale(), at::kDouble)},
          {"growth_factor", at::scalar_tensor(options_.growth_factor, at::kDouble)},
          {"backoff_factor", at::scalar_tensor(options_.backoff_factor, at::kDouble)},
          {"growth_interval", at::scalar_tensor(options_.growth_interval, at::kLong)},
          {"_growth_tracker", at::scalar_tensor(get_growth_tracker(), at::kLong)}};
}

void GradScaler::load_state_dict(const NamedTensors& state) {
  if (!options_.enabled) return;
  const std::map<std::string, double> values = read_state(state);
  GradScalerOptions loaded = options_;
  loaded.init_scale = values.at("scale");
  loaded.growth_factor = values.at("growth_factor");
  loaded.backoff_factor = values.at("backoff_factor");
  loaded.growth_interval = static_cast<int64_t>(values.at("growth_interval"));
  check_options(loaded, load_name);
  const double tracker = values.at("_growth_tracker");
  TORCH_CHECK_VALUE(tracker >= 0, load_name, ": expected a _growth_tracker of at least 0, got ", tracker, ".");
  options_ = loaded;
  init_growth_tracker_ = static_cast<int64_t>(tracker);
  if (!scale_.defined()) return;
  scale_.fill_(options_.init_scale);
  growth_tracker_.fill_(init_growth_tracker_);
}

}  // namespace bellows::amp
