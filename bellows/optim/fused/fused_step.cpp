#include "bellows/optim/fused/fused_step.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "bellows/core/error.h"
#include "bellows/kernels/cpu/optimizers.h"
#include "bellows/kernels/cuda/optimizers.h"
#include "bellows/optim/fused/kernel_type.h"
#include "bellows/tap/deferral.h"

namespace bellows::optim {

namespace {

using kernels::AdagradRule;
using kernels::AdamRule;
using kernels::LionRule;
using kernels::RmspropRule;
using kernels::SgdRule;
using kernels::StepTypes;
using Scalars = at::ArrayRef<at::Scalar>;
using Given = LateNumbers::Given;

// --- arguments of one kernel call

/// Tensors that one kernel call can process together. All have the same kinds of state, and their rules differ only in
/// `step`.
template <class Rule>
struct Bucket {
  c10::Device device;
  StepTypes types;
  std::vector<FusedTensor<Rule>> tensors;

  bool fits(const FusedTensor<Rule>& t, StepTypes t_types) const {
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
StepTypes types_of(const FusedTensor<Rule>& t) {
  const auto param = kernel_type(t.param.scalar_type()).value();
  StepTypes types{param, kernel_type(t.grad.scalar_type()).value(), t.master.defined() ? kernels::Type::f32 : param};
  types.low_bit = t.low_bit;
  types.stochastic = t.rounding_seed.has_value();
  const bool plain = t.state[0].defined() && t.low_bit == kernels::LowBit::none;
  if (plain) types.state = kernel_type(t.state[0].scalar_type()).value();
  return types;
}

/// The tensors' addresses for the kernels. The tensors must not be pending.
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

// --- layouts

/// Makes tensors of one dense layout for the kernels: copies tensors that have another layout, and writes them back
/// afterwards.
class DenseCopies {
 public:
  void make_dense(at::Tensor& tensor) {
    if (tensor.is_non_overlapping_and_dense()) return;
    replace(tensor, tensor.clone());
  }
  void make_like(at::Tensor& tensor, const at::Tensor& dense, at::ScalarType type) {
    if (!tensor.defined() || (tensor.scalar_type() == type && same_layout(tensor, dense))) return;
    replace(tensor, at::empty_like(dense, dense.options().dtype(type)).copy_(tensor));
  }
  void make_grad_like(at::Tensor& grad, const at::Tensor& dense, at::ScalarType type) {
    if (grad.scalar_type() == type && same_layout(grad, dense)) return;
    grad = at::empty_like(dense, dense.options().dtype(type)).copy_(grad);
  }
  void write_back() {
    for (auto& [original, copy] : copies_) original.copy_(copy);
  }

 private:
  void replace(at::Tensor& tensor, at::Tensor copy) {
    copies_.emplace_back(tensor, copy);
    tensor = std::move(copy);
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

/// float64 cannot be mixed with other dtypes: with a float64 parameter, all tensors are float64; otherwise, none is.
at::ScalarType mixable(at::ScalarType type, at::ScalarType parameter) {
  if (parameter == at::kDouble) return at::kDouble;
  return is_fusable(type) && type != at::kDouble ? type : at::kFloat;
}

/// Codes cannot be rearranged, because their blocks follow the memory layout.
template <class Rule>
void check_low_bit_layout(const FusedTensor<Rule>& t) {
  const bool same = t.low_bit == kernels::LowBit::int4 ? t.param.is_contiguous() : same_layout(t.state[0], t.param);
  TORCH_CHECK_VALUE(same, "step: low-bit state of a parameter of shape ", t.param.sizes(),
                    " was created for another memory ", "layout than its current strides ", t.param.strides(),
                    ". Convert the model to its final layout ", "before the first step (int4: row-major).");
}

template <class Rule>
void make_dense(FusedTensor<Rule>& t, DenseCopies& copies) {
  copies.make_dense(t.param);
  const at::ScalarType parameter = t.param.scalar_type();
  copies.make_grad_like(t.grad, t.param, mixable(t.grad.scalar_type(), parameter));
  copies.make_like(t.master, t.param, at::kFloat);
  if (t.low_bit != kernels::LowBit::none) return check_low_bit_layout(t);
  at::ScalarType type = parameter;
  if (t.state[0].defined()) type = mixable(t.state[0].scalar_type(), parameter);
  for (at::Tensor& state : t.state) copies.make_like(state, t.param, type);
}

template <class Rule>
std::vector<Bucket<Rule>> sort_into_buckets(std::vector<FusedTensor<Rule>>& tensors) {
  std::vector<Bucket<Rule>> buckets;
  for (FusedTensor<Rule>& t : tensors) {
    const StepTypes types = types_of(t);
    auto place = std::find_if(buckets.begin(), buckets.end(), [&](const auto& b) { return b.fits(t, types); });
    if (place == buckets.end()) place = buckets.insert(place, {t.param.device(), types, {}});
    place->tensors.push_back(std::move(t));
  }
  return buckets;
}

// --- CPU: kernels of Bellows, also as operators that declare what they read and write (`bellows::adam_step_` etc.)

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

// The constants that all tensors of a bucket share, as a list of numbers. A comparison of two calls shows which of them
// changed.

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

/// The step number of a rule; null for rules without one.
template <class Rule>
double* step_number(Rule& rule) {
  if constexpr (requires { rule.step; }) return &rule.step;
  return nullptr;
}

/// A bucket as the arguments of an operator. Lists are empty if the bucket has no such tensors. `states` and `scales`
/// contain those of the first tensor, then those of the second, and so on.
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

/// Distributes the tensors of number `at` in the list to their places.
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

/// Runs kernels::cpu::step: as an operator if a tap defers operators, otherwise directly.
template <class Rule>
void step_on_cpu(const Bucket<Rule>& bucket, const FusedStep::Late& late) {
  if (tap::active_deferral()) return step_deferred(bucket, late);
  kernels::cpu::step(addresses(bucket), bucket.types);
}

// --- CUDA: libtorch's fused kernels if available, otherwise those of Bellows

template <class Rule>
struct Lists {
  TensorList params, grads, state[3], steps;
  explicit Lists(const Bucket<Rule>& bucket) {
    for (const FusedTensor<Rule>& t : bucket.tensors) {
      params.push_back(t.param);
      grads.push_back(t.grad);
      for (size_t k = 0; k < 3; ++k) {
        if (t.state[k].defined()) state[k].push_back(t.state[k]);
      }
      if (t.step.defined()) steps.push_back(t.step);
    }
  }
};

/// The scalars of a step on a bucket's device.
struct OnDevice {
  std::optional<at::Tensor> grad_scale, found_inf;
  at::Tensor lr;
  OnDevice(const FusedStep& step, c10::Device device) {
    if (step.grad_scale.defined()) grad_scale = step.grad_scale.to(device, at::kFloat);
    if (step.found_inf.defined()) found_inf = step.found_inf.to(device, at::kFloat);
    if (step.lr.defined()) lr = step.lr.to(device, at::kFloat);
  }
};

template <class Rule>
bool run_aten(const Bucket<Rule>&, const FusedStep&, const OnDevice&) {
  return false;
}

bool run_aten(const Bucket<SgdRule>& bucket, const FusedStep& step, const OnDevice& on) {
  Lists<SgdRule> l(bucket);
  const SgdRule& r = bucket.tensors[0].rule;
  const auto run = [&](const auto& lr) {
    at::_fused_sgd_(l.params, l.grads, l.state[0], r.weight_decay, r.momentum, lr, r.dampening, r.nesterov,
                    step.maximize, r.first, on.grad_scale, on.found_inf);
  };
  on.lr.defined() ? run(on.lr) : run(r.lr);
  return true;
}

bool run_aten(const Bucket<AdamRule>& bucket, const FusedStep& step, const OnDevice& on) {
  Lists<AdamRule> l(bucket);
  const AdamRule& r = bucket.tensors[0].rule;
  const auto run = [&](const auto& lr) {
    const auto kernel = [&](auto function) {
      function(l.params, l.grads, l.state[0], l.state[1], l.state[2], l.steps, lr, r.beta1, r.beta2, r.weight_decay,
               r.eps, r.amsgrad, step.maximize, on.grad_scale, on.found_inf);
    };
    if (r.decoupled) {
      kernel([](auto&&... a) { at::_fused_adamw_(a...); });
    } else {
      kernel([](auto&&... a) { at::_fused_adam_(a...); });
    }
  };
  on.lr.defined() ? run(on.lr) : run(r.lr);
  return true;
}

template <class Rule>
void run_on_device(Bucket<Rule>& bucket, const FusedStep& step) {
  const c10::DeviceGuard guard(bucket.device);
  const OnDevice on(step, bucket.device);
  TensorList steps = Lists<Rule>(bucket).steps;
  if (!steps.empty()) at::_foreach_add_(steps, 1);
  const StepTypes& types = bucket.types;
  const bool aten = types.param == types.grad && types.param == types.state && types.low_bit == kernels::LowBit::none &&
                    !types.stochastic && !bucket.tensors[0].master.defined();
  if (!aten || !run_aten(bucket, step, on)) {
    const auto pointer = [](const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; };
    const c10::impl::VirtualGuardImpl backend(bucket.device.type());
    tap::sync();
    kernels::cuda::step(
        addresses(bucket), types,
        {pointer(on.lr), pointer(on.grad_scale.value_or(at::Tensor())), pointer(on.found_inf.value_or(at::Tensor()))},
        backend.getStream(bucket.device).native_handle());
  }
  if (!steps.empty() && on.found_inf) at::_foreach_sub_(steps, TensorList(steps.size(), *on.found_inf));
}

/// The kernels write through addresses. Version counters must be increased as an operator would, for autograd and other
/// users of versions.
template <class Rule>
void bump_versions(const FusedTensor<Rule>& t) {
  t.param.unsafeGetTensorImpl()->bump_version();
  if (t.master.defined()) t.master.unsafeGetTensorImpl()->bump_version();
  for (const at::Tensor& state : t.state) {
    if (state.defined()) state.unsafeGetTensorImpl()->bump_version();
  }
  for (const at::Tensor& scale : t.scale) {
    if (scale.defined()) scale.unsafeGetTensorImpl()->bump_version();
  }
}

template <class Rule>
void run(std::vector<FusedTensor<Rule>>& tensors, const FusedStep& step) {
  DenseCopies copies;
  std::erase_if(tensors, [](const auto& t) { return t.param.numel() == 0; });
  for (FusedTensor<Rule>& t : tensors) {
    make_dense(t, copies);
    bump_versions(t);
    t.rule.grad_factor = t.param.is_cpu() ? step.grad_factor : (step.maximize ? -1 : 1);
  }
  std::vector<Bucket<Rule>> buckets = sort_into_buckets(tensors);
  if (step.begun) *step.begun = true;
  for (Bucket<Rule>& bucket : buckets) {
    if (bucket.device.is_cpu()) {
      step_on_cpu(bucket, step.late);
    } else {
      run_on_device(bucket, step);
    }
  }
  copies.write_back();
}

}  // namespace

// Registered in the source file that calls the operators, so that a static link includes the registration.
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

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

bool is_fusable(at::ScalarType type) {
  return kernel_type(type).has_value();
}

void run_fused(std::vector<FusedTensor<SgdRule>> tensors, const FusedStep& step) {
  run(tensors, step);
}
void run_fused(std::vector<FusedTensor<AdamRule>> tensors, const FusedStep& step) {
  run(tensors, step);
}
void run_fused(std::vector<FusedTensor<RmspropRule>> tensors, const FusedStep& step) {
  run(tensors, step);
}
void run_fused(std::vector<FusedTensor<AdagradRule>> tensors, const FusedStep& step) {
  run(tensors, step);
}
void run_fused(std::vector<FusedTensor<LionRule>> tensors, const FusedStep& step) {
  run(tensors, step);
}

}  // namespace bellows::optim
