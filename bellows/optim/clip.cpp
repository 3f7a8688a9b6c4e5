#include "bellows/optim/clip.h"

#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "bellows/core/scaled_step.h"
#include "bellows/core/sharded_gradients.h"
#include "bellows/optim/fused/clip_op.h"

namespace bellows::optim {

namespace {

using TensorVec = std::vector<at::Tensor>;

void check_clippable(const char* where, const at::Tensor& tensor, size_t index) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, where, ": expected dense gradients, got a ", tensor.layout(),
                    " gradient (tensor ", index,
                    "). Leave it out, or set sparse(false) in the layer to get a dense gradient.");
  TORCH_CHECK_VALUE(at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type()), where,
                    ": expected floating-point tensors, got ", tensor.scalar_type(), " (tensor ", index, ").");
}

TensorVec clippable(const char* where, const TensorVec& tensors) {
  TensorVec result;
  result.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    check_clippable(where, tensors[i], i);
    result.push_back(tensors[i]);
  }
  return result;
}

/// The gradients of a call: complete ones, or this rank's shards of sharded gradients.
struct Gradients {
  struct Owned {
    const ShardedGradients* owner;  ///< null: complete gradients
    TensorVec gradients;
  };
  TensorVec all;
  std::vector<Owned> by_owner;
  bool scattered = false;
  bool wide = false;  ///< whether any is float64; the same on all ranks
  c10::Device device = at::kCPU;

  TensorVec& of(const ShardedGradients* owner) {
    const auto known =
        std::find_if(by_owner.begin(), by_owner.end(), [&](const Owned& owned) { return owned.owner == owner; });
    if (known != by_owner.end()) return known->gradients;
    by_owner.push_back({owner, {}});
    return by_owner.back().gradients;
  }
};

Gradients gradients_of(const char* where, const TensorVec& parameters) {
  Gradients result;
  result.all.reserve(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].defined()) continue;
    const auto [owner, part, counted] = gradient_part(parameters[i]);
    const at::Tensor& gradient = part.grad();
    result.scattered = result.scattered || owner;
    if (owner || gradient.defined()) {
      TensorVec& list = result.of(owner);
      result.wide = result.wide || (owner ? part : gradient).scalar_type() == at::kDouble;
      result.device = part.device();
      if (gradient.defined()) {
        check_clippable(where, gradient, i);
        if (counted) list.push_back(gradient);
        result.all.push_back(gradient);
      }
    }
  }
  return result;
}

/// Lists with one device and dtype each, for which the foreach operators have fast kernels.
std::vector<TensorVec> grouped(const TensorVec& tensors) {
  std::map<std::pair<std::string, at::ScalarType>, size_t> known;
  std::vector<TensorVec> groups;
  for (const at::Tensor& tensor : tensors) {
    const auto [at, fresh] = known.try_emplace({tensor.device().str(), tensor.scalar_type()}, groups.size());
    if (fresh) groups.emplace_back();
    groups[at->second].push_back(tensor);
  }
  return groups;
}

at::Tensor norm_by_operators(const TensorVec& tensors, double norm_type) {
  TensorVec norms, filled;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) filled.push_back(tensor);  // the maximum of no elements would be an error
  }
  const c10::Device device = tensors.front().device();
  if (filled.empty()) return at::scalar_tensor(0, at::TensorOptions(device).dtype(at::kFloat));
  for (const TensorVec& group : grouped(filled)) {
    for (at::Tensor& norm : at::_foreach_norm(group, norm_type)) norms.push_back(norm.to(device));
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

bool all_on_cpu(const TensorVec& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.is_cpu(); });
}

void check_max_norm(const char* where, double max_norm) {
  TORCH_CHECK_VALUE(max_norm >= 0, where, ": expected max_norm of at least 0, got ", max_norm, ".");
}

void scale_to_norm(const TensorVec& grads, double max_norm, const at::Tensor& total_norm) {
  if (grads.empty()) return;
  if (total_norm.is_cpu() && all_on_cpu(grads)) return scale_on_cpu(grads, total_norm, max_norm);
  const at::Tensor coefficient = total_norm.add(1e-6).reciprocal().mul(max_norm).clamp_max(1);
  for (const TensorVec& group : grouped(grads)) at::_foreach_mul_(group, coefficient.to(group.front().device()));
}

void check_finite_norm(const at::Tensor& norm, const ClipOptions& options) {
  if (!options.error_if_nonfinite) return;
  const auto value = norm.item<double>();
  TORCH_CHECK(std::isfinite(value), "get_total_norm: the norm of order ", options.norm_type, " is ", value,
              ": a gradient is infinite or NaN. Find its origin with inspect::FirstNan, or set "
              "error_if_nonfinite = false to continue.");
}

/// The norm over all ranks. For sharded gradients, this is a collective call.
at::Tensor norm_of(const Gradients& gradients, const ClipOptions& options) {
  if (!gradients.scattered) return get_total_norm(gradients.all, options);
  const bool largest = std::isinf(options.norm_type);
  at::Tensor total = at::scalar_tensor(0, at::TensorOptions(gradients.device).dtype(at::kDouble));
  for (const auto& [owner, parts] : gradients.by_owner) {
    at::Tensor share = get_total_norm(parts, {.norm_type = options.norm_type}).to(gradients.device, at::kDouble);
    // The maximum of a number and NaN depends on the implementation, so NaN is replaced by infinity.
    share = largest ? share.nan_to_num(std::numeric_limits<double>::infinity()) : share.pow(options.norm_type);
    if (owner) share = owner->over_ranks(share, largest ? ShardedGradients::Over::max : ShardedGradients::Over::sum);
    total = largest ? at::maximum(total, share) : total.add(share);
  }
  const at::Tensor norm = largest ? total : total.pow(1 / options.norm_type);
  check_finite_norm(norm, options);
  return norm.to(gradients.wide ? at::kDouble : at::kFloat);
}

}  // namespace

at::Tensor get_total_norm(const std::vector<at::Tensor>& tensors, const ClipOptions& options) {
  TORCH_CHECK_VALUE(options.norm_type > 0, "get_total_norm: expected norm_type above 0, got ", options.norm_type, ".");
  const c10::NoGradGuard no_grad;
  const TensorVec dense = clippable("get_total_norm", tensors);
  if (dense.empty()) return at::scalar_tensor(0, at::dtype(at::kFloat));
  at::Tensor norm = norm_by_kernel(dense, options.norm_type);
  if (!norm.defined()) norm = norm_by_operators(dense, options.norm_type);
  check_finite_norm(norm, options);
  return norm;
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options) {
  check_max_norm("clip_grad_norm_", max_norm);
  const c10::NoGradGuard no_grad;
  const Gradients grads = gradients_of("clip_grad_norm_", parameters);
  const at::Tensor total_norm = norm_of(grads, options);
  scale_to_norm(grads.all, max_norm, total_norm);
  return total_norm;
}

void clip_grads_with_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const at::Tensor& total_norm) {
  check_max_norm("clip_grads_with_norm_", max_norm);
  TORCH_CHECK_VALUE(total_norm.defined() && total_norm.numel() == 1,
                    "clip_grads_with_norm_: expected total_norm to be one number, as get_total_norm returns it.");
  const c10::NoGradGuard no_grad;
  scale_to_norm(gradients_of("clip_grads_with_norm_", parameters).all, max_norm, total_norm);
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  TORCH_CHECK_VALUE(clip_value >= 0, "clip_grad_value_: expected clip_value of at least 0, got ", clip_value, ".");
  const c10::NoGradGuard no_grad;
  for (const TensorVec& group : grouped(gradients_of("clip_grad_value_", parameters).all)) {
    if (group.front().is_cpu()) {  // one pass instead of two
      for (const at::Tensor& grad : group) grad.clamp_(-clip_value, clip_value);
    } else {
      at::_foreach_clamp_min_(group, at::Scalar(-clip_value));
      at::_foreach_clamp_max_(group, at::Scalar(clip_value));
    }
  }
}

// --- unscale, clip and step in one

namespace {

/// The optimizer as a ScaledStep that is precise enough for `grads`; null if it is not one.
ScaledStep* as_scaled_step(torch::optim::Optimizer& optimizer, const Gradients& grads) {
  auto* scaled = dynamic_cast<ScaledStep*>(&optimizer);
  const bool any = grads.scattered || !grads.all.empty();  // all ranks make the same choice
  return scaled && any && !grads.wide && scaled->takes_grad_scale() ? scaled : nullptr;
}

at::Tensor clip_then_step(torch::optim::Optimizer& optimizer, const Gradients& grads, double max_norm,
                          const ClipAndStepOptions& options) {
  if (options.grad_scale.defined()) {
    const at::Tensor inverse = options.grad_scale.to(at::kDouble).reciprocal().to(options.grad_scale.dtype());
    for (const TensorVec& group : grouped(grads.all)) at::_foreach_mul_(group, inverse.to(group.front().device()));
  }
  const at::Tensor norm = norm_of(grads, options.clip);
  scale_to_norm(grads.all, max_norm, norm);
  if (!options.skip_nonfinite || std::isfinite(norm.item<double>())) optimizer.step();
  return norm;
}

at::Tensor clip_while_stepping(torch::optim::Optimizer& optimizer, ScaledStep& scaled, const Gradients& grads,
                               double max_norm, const ClipAndStepOptions& options) {
  at::Tensor norm = norm_of(grads, options.clip), scale;
  if (options.grad_scale.defined()) norm = norm.div(options.grad_scale.to(norm.device()));
  scale = norm.add(1e-6).div(max_norm).clamp_min(1);
  if (options.grad_scale.defined()) scale = scale.mul(options.grad_scale.to(norm.device()));
  scaled.set_grad_scale(scale.to(at::kFloat),
                        options.skip_nonfinite ? at::isfinite(norm).logical_not().to(at::kFloat) : at::Tensor());
  optimizer.step();
  return norm;
}

}  // namespace

at::Tensor clip_and_step(torch::optim::Optimizer& optimizer, double max_norm, const ClipAndStepOptions& options) {
  check_max_norm("clip_and_step", max_norm);
  TORCH_CHECK_VALUE(!options.grad_scale.defined() || options.grad_scale.numel() == 1,
                    "clip_and_step: expected grad_scale to be one number, got shape ", options.grad_scale.sizes(), ".");
  const c10::NoGradGuard no_grad;
  TensorVec parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  const Gradients grads = gradients_of("clip_and_step", parameters);
  ScaledStep* const scaled = as_scaled_step(optimizer, grads);
  return scaled ? clip_while_stepping(optimizer, *scaled, grads, max_norm, options)
                : clip_then_step(optimizer, grads, max_norm, options);
}

void zero_grad(const std::vector<at::Tensor>& parameters, bool set_to_none) {
  TensorVec kept;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor p = parameter.defined() ? gradient_part(parameter).part : at::Tensor();
    if (!p.defined() || !p.grad().defined()) continue;
    if (set_to_none) {
      p.mutable_grad().reset();
      continue;
    }
    at::Tensor grad = p.grad();
    if (grad.grad_fn()) {
      grad.detach_();
    } else {
      grad.requires_grad_(false);
    }
    kept.push_back(std::move(grad));
  }
  const c10::NoGradGuard no_grad;
  for (const TensorVec& group : grouped(kept)) at::_foreach_zero_(group);
}

}  // namespace bellows::optim
