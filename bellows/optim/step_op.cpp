#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include "bellows/kernels/cpu/optimizers.h"
#include "bellows/optim/bucket_impl.h"
#include "bellows/tap/deferral.h"

namespace bellows::optim {

namespace {

using kernels::AdagradRule;
using kernels::AdamRule;
using kernels::LionRule;
using kernels::RmspropRule;
using kernels::SgdRule;
using Scalars = at::ArrayRef<at::Scalar>;

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
                  at::TensorList scales, int64_t low_bit, Scalars numbers, Scalars steps, Scalars seeds) {
  if (params.empty()) return;
  Bucket<Rule> bucket{.device = params[0].device()};
  bucket.tensors.reserve(params.size());
  const Rule rule = shared_rule<Rule>(numbers);
  for (size_t i = 0; i < params.size(); ++i) {
    FusedTensor<Rule>& t = bucket.tensors.emplace_back(
        FusedTensor<Rule>{.param = params[i], .grad = grads.at(i), .master = {}, .rule = rule});
    if (!masters.empty()) t.master = masters.at(i);
    take_own(states, i, params.size(), t.state);
    take_own(scales, i, params.size(), t.scale);
    t.low_bit = static_cast<kernels::LowBit>(low_bit);
    if (double* const step = step_number(t.rule)) *step = steps.at(i).toDouble();
    if (!seeds.empty()) t.rounding_seed = static_cast<uint64_t>(seeds.at(i).toLong());
  }
  kernels::cpu::step(addresses(bucket), types_of(bucket.tensors[0]));
}

template <class Rule>
void step_deferred(const char* name, const Bucket<Rule>& bucket) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<decltype(step_strided<Rule>)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  const StepArguments all(bucket);
  op.call(all.params, all.grads, all.masters, all.states, all.scales, all.low_bit, all.rule, all.steps, all.seeds);
}

template <class Rule>
void step_once(const char* name, const Bucket<Rule>& bucket) {
  if (tap::active_deferral()) return step_deferred(name, bucket);
  kernels::cpu::step(addresses(bucket), bucket.types);
}

}  // namespace

// In the source that calls the operators: whoever links the calls links the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  for (const char* const rule : {"sgd", "adam", "rmsprop", "adagrad", "lion"}) {
    const std::string schema = std::string(rule) +
                               "_step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] masters, Tensor(c!)[] states, "
                               "Tensor(d!)[] scales, int low_bit, Scalar[] rule, Scalar[] steps, Scalar[] seeds) -> ()";
    library.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  }
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("sgd_step_", step_strided<SgdRule>);
  library.impl("adam_step_", step_strided<AdamRule>);
  library.impl("rmsprop_step_", step_strided<RmspropRule>);
  library.impl("adagrad_step_", step_strided<AdagradRule>);
  library.impl("lion_step_", step_strided<LionRule>);
}

void step_on_cpu(const Bucket<SgdRule>& bucket) {
  step_once("bellows::sgd_step_", bucket);
}
void step_on_cpu(const Bucket<AdamRule>& bucket) {
  step_once("bellows::adam_step_", bucket);
}
void step_on_cpu(const Bucket<RmspropRule>& bucket) {
  step_once("bellows::rmsprop_step_", bucket);
}
void step_on_cpu(const Bucket<AdagradRule>& bucket) {
  step_once("bellows::adagrad_step_", bucket);
}
void step_on_cpu(const Bucket<LionRule>& bucket) {
  step_once("bellows::lion_step_", bucket);
}

}  // namespace bellows::optim
