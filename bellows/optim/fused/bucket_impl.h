#pragma once

#include <vector>

#include "bellows/optim/fused/fused_impl.h"
#include "bellows/optim/fused/kernel_type_impl.h"

namespace bellows::optim {

using kernels::AdagradRule;
using kernels::AdamRule;
using kernels::LionRule;
using kernels::RmspropRule;
using kernels::SgdRule;

/// Tensors that one kernel call can take together: all have the same kinds of state, and rules that differ in `step` only.
template <class Rule>
struct Bucket {
  c10::Device device;
  kernels::StepTypes types;
  std::vector<FusedTensor<Rule>> tensors;

  bool fits(const FusedTensor<Rule>& t, kernels::StepTypes t_types) const {
    return t.param.device() == device && types == t_types && t.master.defined() == tensors[0].master.defined() &&
           first(t.rule) == first(tensors[0].rule);
  }
  static bool first(const SgdRule& rule) { return rule.first; }
  template <class R>
  static bool first(const R&) {
    return false;
  }
};

template <class Rule>
kernels::StepTypes types_of(const FusedTensor<Rule>& t) {
  const auto param = kernel_type(t.param.scalar_type()).value();
  kernels::StepTypes types{param, kernel_type(t.grad.scalar_type()).value(),
                           t.master.defined() ? kernels::Type::f32 : param};
  types.low_bit = t.low_bit;
  types.stochastic = t.rounding_seed.has_value();
  const bool plain = t.state[0].defined() && t.low_bit == kernels::LowBit::none;
  if (plain) types.state = kernel_type(t.state[0].scalar_type()).value();
  return types;
}

/// Tensors as the kernels see them: they must have their values.
template <class Rule>
std::vector<kernels::StepTensor<Rule>> addresses(const Bucket<Rule>& bucket) {
  std::vector<kernels::StepTensor<Rule>> result;
  result.reserve(bucket.tensors.size());
  for (const FusedTensor<Rule>& t : bucket.tensors) {
    auto& one = result.emplace_back();
    one.size = t.param.numel();
    one.param = t.param.mutable_data_ptr();
    one.grad = t.grad.const_data_ptr();
    if (t.master.defined()) one.master = t.master.mutable_data_ptr();
    for (size_t k = 0; k < 3; ++k) one.state[k] = t.state[k].defined() ? t.state[k].mutable_data_ptr() : nullptr;
    for (size_t k = 0; k < 2; ++k)
      one.scale[k] = t.scale[k].defined() ? t.scale[k].template mutable_data_ptr<float>() : nullptr;
    one.rounding_seed = t.rounding_seed.value_or(0);
    one.rule = t.rule;
    if (t.step.defined()) one.device_step = t.step.template const_data_ptr<float>();
  }
  return result;
}

/// kernels::cpu::step. Where a client of the taps defers operators, it is one itself, `bellows::adam_step_` and the like, which
/// says what it reads and writes; else it is called as it is.
template <class Rule>
void step_on_cpu(const Bucket<Rule>& bucket, const FusedStep::Late& late);

}  // namespace bellows::optim
