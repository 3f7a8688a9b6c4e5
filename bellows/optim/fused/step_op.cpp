#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <type_traits>

#include "bellows/kernels/cpu/optimizers.h"
#include "bellows/optim/fused/bucket_impl.h"
#include "bellows/tap/deferral.h"

namespace bellows::optim {

namespace {

using Scalars = at::ArrayRef<at::Scalar>;
using Given = LateNumbers::Given;

template <class Rule>
constexpr const char* operator_name = std::is_same_v<Rule, SgdRule>       ? "sgd_step_"
                                      : std::is_same_v<Rule, AdamRule>    ? "adam_step_"
                                      : std::is_same_v<Rule, RmspropRule> ? "rmsprop_step_"
                                      : std::is_same_v<Rule, AdagradRule> ? "adagrad_step_"
                                                                          : "lion_step_";
template <class F>
void for_each_rule(F f) {
  f(SgdRule()), f(AdamRule()), f(RmspropRule()), f(AdagradRule()), f(LionRule());
}

// What all tensors of a bucket have in common, as numbers: whoever compares calls sees which of them change.

template <class F>
void shared_numbers(SgdRule& r, F f) {
  f(r.lr), f(r.momentum), f(r.dampening), f(r.weight_decay), f(r.grad_factor), f(r.nesterov), f(r.first);
}
template <class F>
void shared_numbers(AdamRule& r, F f) {
  f(r.lr), f(r.beta1), f(r.beta2), f(r.eps), f(r.weight_decay), f(r.grad_factor), f(r.decoupled), f(r.amsgrad);
}
template <class F>
void shared_numbers(RmspropRule& r, F f) {
  f(r.lr), f(r.alpha), f(r.eps), f(r.weight_decay), f(r.momentum), f(r.grad_factor), f(r.centered);
}
template <class F>
void shared_numbers(AdagradRule& r, F f) {
  f(r.lr), f(r.lr_decay), f(r.eps), f(r.weight_decay), f(r.grad_factor);
}
template <class F>
void shared_numbers(LionRule& r, F f) {
  f(r.lr), f(r.beta1), f(r.beta2), f(r.weight_decay), f(r.grad_factor);
}

/// The number of the step, of rules that know it; null for others.
template <class Rule>
double* step_number(Rule& rule) {
  if constexpr (requires { rule.step; }) return &rule.step;
  return nullptr;
}

/// A bucket as the arguments of an operator. Lists are empty where the bucket has nothing of the kind; `states` and `scales` hold those
/// of the first tensor, then those of the second.
struct StepArguments {
  TensorList params, grads, masters, states, scales;
  int64_t low_bit = 0;
  std::vector<at::Scalar> rule, steps, seeds;

  template <class Rule>
  explicit StepArguments(const Bucket<Rule>& bucket) : low_bit(static_cast<int64_t>(bucket.types.low_bit)) {
    const auto add = [](TensorList& list, const at::Tensor& tensor) {
      if (tensor.defined()) list.push_back(tensor);
    };
    for (const FusedTensor<Rule>& t : bucket.tensors) {
      add(params, t.param);
      add(grads, t.grad);
      add(masters, t.master);
      for (const at::Tensor& state : t.state) add(states, state);
      for (const at::Tensor& scale : t.scale) add(scales, scale);
      Rule own = t.rule;
      if (rule.empty()) shared_numbers(own, [&](const auto& number) { rule.emplace_back(number); });
      if (const double* const step = step_number(own)) steps.emplace_back(*step);
      if (t.rounding_seed) seeds.emplace_back(static_cast<int64_t>(*t.rounding_seed));
    }
  }
};

template <class Rule>
Rule shared_rule(Scalars numbers) {
  Rule rule;
  size_t next = 0;
  shared_numbers(rule, [&]<class Number>(Number& number) { number = numbers.at(next++).to<Number>(); });
  return rule;
}

/// Puts number `at` of each group of them where it belongs.
template <size_t count>
void take_own(at::TensorList list, size_t at, size_t tensors, std::array<at::Tensor, count>& to) {
  const size_t each = list.size() / tensors;
  TORCH_CHECK_VALUE(each <= count && each * tensors == list.size(), "step: expected at most ", count,
                    " tensors of state for each of ", tensors, " parameters, got ", list.size(), ".");
  for (size_t k = 0; k < each; ++k) to[k] = list[at * each + k];
}

template <class Rule>
void step_strided(at::TensorList params, at::TensorList grads, at::TensorList masters, at::TensorList states,
                  at::TensorList scales, int64_t low_bit, Scalars numbers, Scalars steps, Scalars seeds,
                  const Given& grad_scale, const Given& found_inf, const Given& skipped) {
  const LateNumbers late(grad_scale, found_inf, skipped);
  if (params.empty() || late.skips) return;
  Bucket<Rule> bucket{.device = params[0].device()};
  bucket.tensors.reserve(params.size());
  Rule rule = shared_rule<Rule>(numbers);
  rule.grad_factor /= late.scale;
  for (size_t i = 0; i < params.size(); ++i) {
    FusedTensor<Rule>& t = bucket.tensors.emplace_back(
        FusedTensor<Rule>{.param = params[i], .grad = grads.at(i), .master = {}, .rule = rule});
    if (!masters.empty()) t.master = masters.at(i);
    take_own(states, i, params.size(), t.state);
    take_own(scales, i, params.size(), t.scale);
    t.low_bit = static_cast<kernels::LowBit>(low_bit);
    if (double* const step = step_number(t.rule)) *step = steps.at(i).toDouble() - late.skipped;
    if (!seeds.empty()) t.rounding_seed = static_cast<uint64_t>(seeds.at(i).toLong());
  }
  kernels::cpu::step(addresses(bucket), types_of(bucket.tensors[0]));
}

template <class Rule>
void step_deferred(const Bucket<Rule>& bucket, const FusedStep::Late& late) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(c10::str("bellows::", operator_name<Rule>).c_str(), "")
                             .template typed<decltype(step_strided<Rule>)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  const StepArguments all(bucket);
  op.call(all.params, all.grads, all.masters, all.states, all.scales, all.low_bit, all.rule, all.steps, all.seeds,
          if_defined(late.grad_scale), if_defined(late.found_inf), if_defined(late.skipped));
}

}  // namespace

// In the source that calls the operators: whoever links the calls links the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  for_each_rule([&]<class Rule>(const Rule&) {
    const std::string schema = std::string(operator_name<Rule>) +
                               "(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] masters, Tensor(c!)[] states, "
                               "Tensor(d!)[] scales, int low_bit, Scalar[] rule, Scalar[] steps, Scalar[] seeds, "
                               "Tensor? grad_scale, Tensor? found_inf, Tensor? skipped) -> ()";
    library.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  });
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  for_each_rule([&]<class Rule>(const Rule&) { library.impl(operator_name<Rule>, step_strided<Rule>); });
}

template <class Rule>
void step_on_cpu(const Bucket<Rule>& bucket, const FusedStep::Late& late) {
  if (tap::active_deferral()) return step_deferred(bucket, late);
  kernels::cpu::step(addresses(bucket), bucket.types);
}

template void step_on_cpu(const Bucket<SgdRule>&, const FusedStep::Late&);
template void step_on_cpu(const Bucket<AdamRule>&, const FusedStep::Late&);
template void step_on_cpu(const Bucket<RmspropRule>&, const FusedStep::Late&);
template void step_on_cpu(const Bucket<AdagradRule>&, const FusedStep::Late&);
template void step_on_cpu(const Bucket<LionRule>&, const FusedStep::Late&);

}  // namespace bellows::optim
