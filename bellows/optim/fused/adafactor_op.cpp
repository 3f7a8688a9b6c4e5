#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "bellows/optim/fused/adafactor_op.h"
#include "bellows/optim/fused/kernel_type.h"
#include "bellows/tap/deferral.h"

namespace bellows::optim {

kernels::AdafactorRule adafactor_rule(const AdafactorGroupOptions& o, double step) {
  const double relative = std::min(o.warmup_init() ? 1e-6 * step : 1e-2, 1 / std::sqrt(step));
  return {.lr = o.lr() * (o.relative_step() ? relative : 1),
          .scale_parameter = o.scale_parameter(),
          .beta1 = o.beta1(),
          .beta2 = 1 - std::pow(step, o.decay_rate()),
          .eps1 = std::get<0>(o.eps()),
          .eps2 = std::get<1>(o.eps()),
          .clip_threshold = o.clip_threshold(),
          .weight_decay = o.weight_decay()};
}

namespace {

using AdafactorGiven = LateNumbers::Given;
using AdafactorNumbers = at::ArrayRef<at::Scalar>;

template <class F>
void for_each_option(AdafactorGroupOptions& o, F f) {
  f(o.lr()), f(std::get<0>(o.eps())), f(std::get<1>(o.eps())), f(o.clip_threshold()), f(o.decay_rate()), f(o.beta1());
  f(o.weight_decay()), f(o.scale_parameter()), f(o.relative_step()), f(o.warmup_init());
}

/// The kernel's arguments for a parameter, without state.
kernels::AdafactorTensor adafactor_tensor(const at::Tensor& weight, const at::Tensor& grad) {
  const int64_t columns = weight.dim() >= 2 ? weight.size(-1) : weight.numel();
  const int64_t rows = weight.dim() >= 2 ? weight.size(-2) : 1;
  return {.batches = weight.numel() / std::max<int64_t>(1, rows * columns),
          .rows = rows,
          .columns = columns,
          .param_type = kernel_type(weight.scalar_type()).value(),
          .grad_type = kernel_type(grad.scalar_type()).value(),
          .param = weight.mutable_data_ptr(),
          .grad = grad.const_data_ptr()};
}

void adafactor_strided(at::TensorList weights, at::TensorList grads, at::TensorList rows, at::TensorList columns,
                       at::TensorList squares, at::TensorList firsts, AdafactorNumbers numbers, AdafactorNumbers steps,
                       double grad_factor, const AdafactorGiven& grad_scale, const AdafactorGiven& found_inf,
                       const AdafactorGiven& skipped) {
  const LateNumbers late(grad_scale, found_inf, skipped);
  if (late.skips) return;
  AdafactorGroupOptions options;
  size_t next = 0;
  for_each_option(options, [&]<class Number>(Number& number) { number = numbers.at(next++).to<Number>(); });
  std::vector<kernels::AdafactorTensor> tensors;
  tensors.reserve(weights.size());
  size_t factored = 0, whole = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    auto& one = tensors.emplace_back(adafactor_tensor(weights[i], grads.at(i)));
    one.rule = adafactor_rule(options, steps.at(i).toDouble() - late.skipped);
    one.rule.grad_factor = grad_factor / late.scale;
    if (weights[i].dim() >= 2) {
      one.row = rows.at(factored).mutable_data_ptr();
      one.column = columns.at(factored++).mutable_data_ptr();
    } else {
      one.square = squares.at(whole++).mutable_data_ptr();
    }
    if (!firsts.empty()) one.first = firsts.at(i).mutable_data_ptr();
  }
  kernels::adafactor_step(tensors);
}

}  // namespace

// Registered in the source file that calls the operator, so that a static link includes the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def(
      "adafactor_step_(Tensor(a!)[] weights, Tensor[] grads, Tensor(b!)[] rows, Tensor(c!)[] columns, Tensor(d!)[] "
      "squares, Tensor(e!)[] firsts, Scalar[] options, Scalar[] steps, float grad_factor, Tensor? grad_scale, Tensor? "
      "found_inf, Tensor? skipped) -> ()",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("adafactor_step_", adafactor_strided);
}

void adafactor_on_cpu(const AdafactorTensors& t, const AdafactorGroupOptions& options, const FusedStep& step) {
  if (t.weights.empty()) return;
  std::vector<at::Scalar> numbers;
  AdafactorGroupOptions own = options;
  for_each_option(own, [&](const auto& number) { numbers.emplace_back(number); });
  const auto run = [&](const auto& function) {
    function(t.weights, t.grads, t.rows, t.columns, t.squares, t.firsts, numbers, t.steps, step.grad_factor,
             if_defined(step.late.grad_scale), if_defined(step.late.found_inf), if_defined(step.late.skipped));
  };
  if (!tap::active_deferral()) return run(adafactor_strided);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("bellows::adafactor_step_", "")
                             .typed<decltype(adafactor_strided)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  run([&](auto&&... arguments) { op.call(arguments...); });
}

}  // namespace bellows::optim
