#include "bellows/kernels/cpu/optimizers.h"

#include <algorithm>
#include <cstring>

#include "bellows/kernels/cpu/low_bit.h"
#include "bellows/kernels/cpu/optimizer_chunks.h"

// Compiled once for each instruction set that is not disabled below; the best one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/optimizers.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "bellows/kernels/cpu/optimizer_rules_impl.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// --- the sweep

template <class T>
struct Arrays {
  T* p;
  const T* g;
  T* s[3];
};

template <int K, class D, class F, class T>
HWY_INLINE void step_vector(D d, const F& formula, const Arrays<T>& a, size_t i) {
  auto p = hn::LoadU(d, a.p + i);
  const auto g = hn::LoadU(d, a.g + i);
  auto s0 = K > 0 ? hn::LoadU(d, a.s[0] + i) : hn::Zero(d);
  auto s1 = K > 1 ? hn::LoadU(d, a.s[1] + i) : hn::Zero(d);
  auto s2 = K > 2 ? hn::LoadU(d, a.s[2] + i) : hn::Zero(d);
  formula.template apply<K>(p, g, s0, s1, s2);
  hn::StoreU(p, d, a.p + i);
  if constexpr (K > 0) hn::StoreU(s0, d, a.s[0] + i);
  if constexpr (K > 1) hn::StoreU(s1, d, a.s[1] + i);
  if constexpr (K > 2) hn::StoreU(s2, d, a.s[2] + i);
}

template <int K, class T, class Rule>
void sweep(const Rule& rule, const Arrays<T>& a, size_t n) {
  using D = hn::ScalableTag<T>;
  const D d;
  const VectorFormula<D, Rule> formula(d, rule);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) step_vector<K>(d, formula, a, i);
  if (i == n) return;
  T rest[5][hn::MaxLanes(D())] = {};
  const size_t bytes = (n - i) * sizeof(T);
  std::memcpy(rest[0], a.p + i, bytes);
  std::memcpy(rest[1], a.g + i, bytes);
  for (int k = 0; k < K; ++k) std::memcpy(rest[2 + k], a.s[k] + i, bytes);
  step_vector<K>(d, formula, Arrays<T>{rest[0], rest[1], {rest[2], rest[3], rest[4]}}, 0);
  std::memcpy(a.p + i, rest[0], bytes);
  for (int k = 0; k < K; ++k) std::memcpy(a.s[k] + i, rest[2 + k], bytes);
}

template <class T, class Rule>
void sweep_states(const Rule& rule, const Arrays<T>& a, size_t n) {
  switch (rule.states()) {
    case 0:
      return sweep<0>(rule, a, n);
    case 1:
      return sweep<1>(rule, a, n);
    case 2:
      return sweep<2>(rule, a, n);
    default:
      return sweep<3>(rule, a, n);
  }
}

template <class T, class Rule>
void sweep_in_place(const StepTensor<Rule>& t, size_t begin, size_t end) {
  Arrays<T> a{static_cast<T*>(t.param) + begin, static_cast<const T*>(t.grad) + begin, {}};
  for (int k = 0; k < t.rule.states(); ++k) a.s[k] = static_cast<T*>(t.state[k]) + begin;
  sweep_states(t.rule, a, end - begin);
}

template <class Rule>
void sweep_converting(const StepTensor<Rule>& t, StepTypes types, size_t begin, size_t end) {
  void* const weights = t.master ? t.master : t.param;
  const Type weight_type = t.master ? Type::f32 : types.param;
  Window p, g, s[3];
  for (size_t at = begin; at < end; at += window_size) {
    const size_t n = std::min(window_size, end - at);
    Arrays<float> a{p.open(weights, weight_type, at, n), g.open(t.grad, types.grad, at, n), {}};
    for (int k = 0; k < t.rule.states(); ++k) a.s[k] = s[k].open(t.state[k], types.state, at, n);
    sweep_states(t.rule, a, n);
    Window::write(a.p, t.param, types.param, at, n, {types.stochastic, t.rounding_seed});
    for (int k = 0; k < t.rule.states(); ++k) s[k].close(t.state[k], types.state, at, n);
  }
}

template <class Rule>
void step_range(const StepTensor<Rule>& t, StepTypes types, size_t begin, size_t end) {
  if (types.param == Type::f64) return sweep_in_place<double>(t, begin, end);
  if (types == StepTypes{} && !t.master) return sweep_in_place<float>(t, begin, end);
  sweep_converting(t, types, begin, end);
}

void step_sgd(const StepTensor<SgdRule>& t, StepTypes types, size_t begin, size_t end) {
  step_range(t, types, begin, end);
}
void step_adam(const StepTensor<AdamRule>& t, StepTypes types, size_t begin, size_t end) {
  step_range(t, types, begin, end);
}
void step_rmsprop(const StepTensor<RmspropRule>& t, StepTypes types, size_t begin, size_t end) {
  step_range(t, types, begin, end);
}
void step_adagrad(const StepTensor<AdagradRule>& t, StepTypes types, size_t begin, size_t end) {
  step_range(t, types, begin, end);
}
void step_lion(const StepTensor<LionRule>& t, StepTypes types, size_t begin, size_t end) {
  step_range(t, types, begin, end);
}

}  // namespace bellows::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bellows::kernels::cpu {

HWY_EXPORT(step_sgd);
HWY_EXPORT(step_adam);
HWY_EXPORT(step_rmsprop);
HWY_EXPORT(step_adagrad);
HWY_EXPORT(step_lion);

void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types) {
  if (types.low_bit != LowBit::none) return step_low_bit(tensors, types);
  step_chunks(tensors, types, HWY_DYNAMIC_DISPATCH(step_sgd));
}
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types) {
  if (types.low_bit != LowBit::none) return step_low_bit(tensors, types);
  step_chunks(tensors, types, HWY_DYNAMIC_DISPATCH(step_adam));
}
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types) {
  step_chunks(tensors, types, HWY_DYNAMIC_DISPATCH(step_rmsprop));
}
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types) {
  step_chunks(tensors, types, HWY_DYNAMIC_DISPATCH(step_adagrad));
}
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types) {
  if (types.low_bit != LowBit::none) return step_low_bit(tensors, types);
  step_chunks(tensors, types, HWY_DYNAMIC_DISPATCH(step_lion));
}

}  // namespace bellows::kernels::cpu
#endif
