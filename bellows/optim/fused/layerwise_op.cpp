#include "bellows/optim/fused/layerwise_op.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "bellows/core/error.h"
#include "bellows/optim/fused/kernel_type.h"
#include "bellows/optim/state/fields_impl.h"
#include "bellows/tap/deferral.h"

namespace bellows::optim {

kernels::LambRule layerwise_rule(const LambGroupOptions& o, double step) {
  const auto [beta1, beta2] = o.betas();
  return {.lr = o.lr(),
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = o.eps(),
          .weight_decay = o.weight_decay(),
          .new1 = o.grad_averaging() ? 1 - beta1 : 1,
          .correction1 = o.bias_correction() ? 1 - std::pow(beta1, step) : 1,
          .correction2 = o.bias_correction() ? 1 - std::pow(beta2, step) : 1,
          .decoupled = o.decoupled_weight_decay(),
          .adapts = o.always_adapt() || o.weight_decay() != 0};
}

kernels::NovogradRule layerwise_rule(const NovoGradGroupOptions& o, double step) {
  const auto [beta1, beta2] = o.betas();
  return {.lr = o.lr(),
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = o.eps(),
          .weight_decay = o.weight_decay(),
          .new1 = o.grad_averaging() ? 1 - beta1 : 1,
          .correction1 = o.bias_correction() ? 1 - std::pow(beta1, step) : 1,
          .correction2 = o.bias_correction() ? std::sqrt(1 - std::pow(beta2, step)) : 1,
          .first = step <= 1 && !o.init_zero(),
          .inside_moment = o.reg_inside_moment(),
          .max_norm = o.max_norm()};
}

namespace {

using LayerwiseGiven = LateNumbers::Given;
using LayerwiseNumbers = at::ArrayRef<at::Scalar>;

/// Calls `f(number)` for each number in the options.
template <class Options, class F>
void for_each_number(Options& options, F f) {
  fields(options, [&]<class Value>(const char*, Value& value) {
    if constexpr (std::is_arithmetic_v<Value>) {
      f(value);
    } else {
      f(std::get<0>(value)), f(std::get<1>(value));
    }
  });
}

/// Clips by the norm of the gradients after scaling.
void clip(kernels::LambRule& rule, const LambGroupOptions& o, const LayerwiseGiven& grad_norm) {
  if (!grad_norm) return;
  const double norm = grad_norm->item<double>() * std::abs(rule.grad_factor);
  if (norm > o.max_grad_norm()) rule.grad_factor *= o.max_grad_norm() / norm;
}
void clip(kernels::NovogradRule&, const NovoGradGroupOptions&, const LayerwiseGiven&) {}

template <class Options>
void layerwise_strided(at::TensorList weights, at::TensorList grads, at::TensorList firsts, at::TensorList seconds,
                       LayerwiseNumbers numbers, LayerwiseNumbers steps, double grad_factor,
                       const LayerwiseGiven& grad_norm, const LayerwiseGiven& grad_scale,
                       const LayerwiseGiven& found_inf, const LayerwiseGiven& skipped) {
  const LateNumbers late(grad_scale, found_inf, skipped);
  if (late.skips) return;
  Options options;
  size_t next = 0;
  for_each_number(options, [&]<class Number>(Number& number) { number = numbers.at(next++).to<Number>(); });
  using Rule = decltype(layerwise_rule(options, 1));
  std::vector<kernels::LayerwiseTensor<Rule>> tensors;
  tensors.reserve(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    Rule rule = layerwise_rule(options, steps.at(i).toDouble() - late.skipped);
    rule.grad_factor = grad_factor / late.scale;
    clip(rule, options, grad_norm);
    tensors.push_back({.size = weights[i].numel(),
                       .param_type = kernel_type(weights[i].scalar_type()).value(),
                       .grad_type = kernel_type(grads.at(i).scalar_type()).value(),
                       .param = weights[i].mutable_data_ptr(),
                       .grad = grads[i].const_data_ptr(),
                       .first = firsts.at(i).mutable_data_ptr(),
                       .second = seconds.at(i).mutable_data_ptr(),
                       .rule = rule});
  }
  kernels::layerwise_step(std::span<const kernels::LayerwiseTensor<Rule>>(tensors));
}

template <class Options>
constexpr const char* layerwise_name = std::is_same_v<Options, LambGroupOptions> ? "lamb_step_" : "novograd_step_";
template <class F>
void for_each_layerwise(F f) {
  f(LambGroupOptions()), f(NovoGradGroupOptions());
}

}  // namespace

// Registered in the source file that calls the operators, so that a static link includes the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  for_each_layerwise([&]<class Options>(const Options&) {
    const std::string schema = std::string(layerwise_name<Options>) +
                               "(Tensor(a!)[] weights, Tensor[] grads, Tensor(b!)[] firsts, Tensor(c!)[] seconds, "
                               "Scalar[] options, Scalar[] steps, float grad_factor, Tensor? grad_norm, Tensor? "
                               "grad_scale, Tensor? found_inf, Tensor? skipped) -> ()";
    library.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  });
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  for_each_layerwise(
      [&]<class Options>(const Options&) { library.impl(layerwise_name<Options>, layerwise_strided<Options>); });
}

at::Tensor LayerwiseStep::laid_out(const at::Tensor& tensor, const at::Tensor& like) {
  if (same_layout(tensor, like)) return tensor;
  at::Tensor copy = at::empty_like(like, like.options().dtype(tensor.scalar_type())).copy_(tensor);
  copies_.emplace_back(tensor, copy);
  return copy;
}

void LayerwiseStep::add(const at::Tensor& parameter, const at::Tensor& master, const at::Tensor& first,
                        const at::Tensor& second, int64_t step) {
  const at::Tensor original = master.defined() ? master : parameter.detach();
  at::Tensor weight = original;
  if (!weight.is_non_overlapping_and_dense()) {
    weight = original.clone();
    copies_.emplace_back(original, weight);
  }
  const at::ScalarType type = weight.scalar_type(), given = parameter.grad().scalar_type();
  const bool mixes = type != at::kDouble && given != at::kDouble && is_fusable(given);
  at::Tensor grad = parameter.grad().to(mixes ? given : type);
  if (!same_layout(grad, weight)) grad = at::empty_like(weight, weight.options().dtype(grad.scalar_type())).copy_(grad);
  weights_.push_back(weight);
  grads_.push_back(grad);
  firsts_.push_back(laid_out(first, weight));
  seconds_.push_back(seconds_like_weight_ ? laid_out(second, weight) : second);
  steps_.emplace_back(step);
  if (master.defined()) copies_.emplace_back(parameter.detach(), weight);
  for (const at::Tensor& changed : {original, first, second}) changed.unsafeGetTensorImpl()->bump_version();
}

template <class Options>
void LayerwiseStep::run_as(const Options& options, const at::Tensor& grad_norm, const FusedStep& step) {
  if (step.begun) *step.begun = true;
  if (weights_.empty()) return;
  std::vector<at::Scalar> numbers;
  Options own = options;
  for_each_number(own, [&](const auto& number) { numbers.emplace_back(number); });
  const auto run = [&](const auto& function) {
    function(weights_, grads_, firsts_, seconds_, numbers, steps_, step.grad_factor, if_defined(grad_norm),
             if_defined(step.late.grad_scale), if_defined(step.late.found_inf), if_defined(step.late.skipped));
  };
  if (tap::active_deferral()) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(c10::str("bellows::", layerwise_name<Options>).c_str(), "")
                               .template typed<decltype(layerwise_strided<Options>)>();
    const at::AutoDispatchBelowADInplaceOrView below;
    run([&](auto&&... arguments) { op.call(arguments...); });
  } else {
    run(layerwise_strided<Options>);
  }
  for (const auto& [original, result] : copies_) original.copy_(result);
}

void LayerwiseStep::run(const LambGroupOptions& options, const at::Tensor& grad_norm, const FusedStep& step) {
  run_as(options, grad_norm, step);
}
void LayerwiseStep::run(const NovoGradGroupOptions& options, const FusedStep& step) {
  run_as(options, at::Tensor(), step);
}

}  // namespace bellows::optim
