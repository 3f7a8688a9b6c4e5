#include "bellows/kernels/cpu/optimizers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bellows/kernels/parallel.h"

// Compiled once for each kind of processor below; the best is chosen when the program runs.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/optimizers.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// --- the rules, as in optimizer_formula_impl.h, on vectors. K: arrays of state.

template <class D, class Rule>
struct VectorFormula;

/// The scaled gradient with weight decay; without decay an infinite weight has no part in it.
template <class V>
HWY_INLINE V decayed(V g, V factor, bool has_decay, V decay, V p) {
  g = hn::Mul(g, factor);
  return has_decay ? hn::MulAdd(decay, p, g) : g;
}

template <class D>
struct VectorFormula<D, SgdRule> {
  using V = hn::Vec<D>;
  V factor, decay, momentum, undamped, minus_lr;
  bool has_decay, nesterov, first;
  VectorFormula(D d, const SgdRule& r)
      : factor(hn::Set(d, hn::TFromD<D>(r.grad_factor))),
        decay(hn::Set(d, hn::TFromD<D>(r.weight_decay))),
        momentum(hn::Set(d, hn::TFromD<D>(r.momentum))),
        undamped(hn::Set(d, hn::TFromD<D>(1 - r.dampening))),
        minus_lr(hn::Set(d, hn::TFromD<D>(-r.lr))),
        has_decay(r.weight_decay != 0),
        nesterov(r.nesterov),
        first(r.first) {}
  template <int K>
  HWY_INLINE void apply(V& p, V g, V& buffer, V&, V&) const {
    g = decayed(g, factor, has_decay, decay, p);
    if constexpr (K == 1) {
      buffer = first ? g : hn::MulAdd(momentum, buffer, hn::Mul(undamped, g));
      g = nesterov ? hn::MulAdd(momentum, buffer, g) : buffer;
    }
    p = hn::MulAdd(minus_lr, g, p);
  }
};

template <class D>
struct VectorFormula<D, AdamRule> {
  using V = hn::Vec<D>;
  V factor, coupled_decay, keep, beta1, new1, beta2, new2, eps, minus_step_size, root_scale;
  bool has_decay;
  VectorFormula(D d, const AdamRule& r)
      : factor(hn::Set(d, hn::TFromD<D>(r.grad_factor))),
        coupled_decay(hn::Set(d, hn::TFromD<D>(r.decoupled ? 0 : r.weight_decay))),
        keep(hn::Set(d, hn::TFromD<D>(r.decoupled ? 1 - r.lr * r.weight_decay : 1))),
        beta1(hn::Set(d, hn::TFromD<D>(r.beta1))),
        new1(hn::Set(d, hn::TFromD<D>(1 - r.beta1))),
        beta2(hn::Set(d, hn::TFromD<D>(r.beta2))),
        new2(hn::Set(d, hn::TFromD<D>(1 - r.beta2))),
        eps(hn::Set(d, hn::TFromD<D>(r.eps))),
        minus_step_size(hn::Set(d, hn::TFromD<D>(-r.lr / (1 - std::pow(r.beta1, r.step))))),
        root_scale(hn::Set(d, hn::TFromD<D>(1 / std::sqrt(1 - std::pow(r.beta2, r.step))))),
        has_decay(!r.decoupled && r.weight_decay != 0) {}
  template <int K>
  HWY_INLINE void apply(V& p, V g, V& m, V& v, V& v_max) const {
    g = decayed(g, factor, has_decay, coupled_decay, p);
    m = hn::MulAdd(beta1, m, hn::Mul(new1, g));
    v = hn::MulAdd(beta2, v, hn::Mul(hn::Mul(new2, g), g));
    if constexpr (K == 3) v_max = hn::IfThenElse(hn::Gt(v_max, v), v_max, v);
    const V root = hn::Sqrt(K == 3 ? v_max : v);
    const V update = hn::Div(hn::Mul(minus_step_size, m), hn::MulAdd(root, root_scale, eps));
    p = hn::MulAdd(p, keep, update);
  }
};

template <class D>
struct VectorFormula<D, RmspropRule> {
  using V = hn::Vec<D>;
  V factor, decay, alpha, fresh, eps, momentum, minus_lr;
  bool has_decay, centered;
  VectorFormula(D d, const RmspropRule& r)
      : factor(hn::Set(d, hn::TFromD<D>(r.grad_factor))),
        decay(hn::Set(d, hn::TFromD<D>(r.weight_decay))),
        alpha(hn::Set(d, hn::TFromD<D>(r.alpha))),
        fresh(hn::Set(d, hn::TFromD<D>(1 - r.alpha))),
        eps(hn::Set(d, hn::TFromD<D>(r.eps))),
        momentum(hn::Set(d, hn::TFromD<D>(r.momentum))),
        minus_lr(hn::Set(d, hn::TFromD<D>(-r.lr))),
        has_decay(r.weight_decay != 0),
        centered(r.centered) {}
  template <int K>
  HWY_INLINE void apply(V& p, V g, V& v, V& second, V& third) const {
    g = decayed(g, factor, has_decay, decay, p);
    v = hn::MulAdd(alpha, v, hn::Mul(hn::Mul(fresh, g), g));
    V variance = v;
    if (K == 3 || (K == 2 && centered)) {
      V& mean = K == 3 ? third : second;
      mean = hn::MulAdd(alpha, mean, hn::Mul(fresh, g));
      variance = hn::NegMulAdd(mean, mean, v);
    }
    V direction = hn::Div(g, hn::Add(hn::Sqrt(variance), eps));
    if (K == 3 || (K == 2 && !centered)) direction = second = hn::MulAdd(momentum, second, direction);
    p = hn::MulAdd(minus_lr, direction, p);
  }
};

template <class D>
struct VectorFormula<D, AdagradRule> {
  using V = hn::Vec<D>;
  V factor, decay, eps, minus_lr;
  bool has_decay;
  VectorFormula(D d, const AdagradRule& r)
      : factor(hn::Set(d, hn::TFromD<D>(r.grad_factor))),
        decay(hn::Set(d, hn::TFromD<D>(r.weight_decay))),
        eps(hn::Set(d, hn::TFromD<D>(r.eps))),
        minus_lr(hn::Set(d, hn::TFromD<D>(-r.lr / (1 + (r.step - 1) * r.lr_decay)))),
        has_decay(r.weight_decay != 0) {}
  template <int K>
  HWY_INLINE void apply(V& p, V g, V& sum, V&, V&) const {
    g = decayed(g, factor, has_decay, decay, p);
    sum = hn::MulAdd(g, g, sum);
    p = hn::Add(p, hn::Div(hn::Mul(minus_lr, g), hn::Add(hn::Sqrt(sum), eps)));
  }
};

template <class D>
struct VectorFormula<D, LionRule> {
  using V = hn::Vec<D>;
  V factor, keep, beta1, new1, beta2, new2, minus_lr, zero;
  VectorFormula(D d, const LionRule& r)
      : factor(hn::Set(d, hn::TFromD<D>(r.grad_factor))),
        keep(hn::Set(d, hn::TFromD<D>(1 - r.lr * r.weight_decay))),
        beta1(hn::Set(d, hn::TFromD<D>(r.beta1))),
        new1(hn::Set(d, hn::TFromD<D>(1 - r.beta1))),
        beta2(hn::Set(d, hn::TFromD<D>(r.beta2))),
        new2(hn::Set(d, hn::TFromD<D>(1 - r.beta2))),
        minus_lr(hn::Set(d, hn::TFromD<D>(-r.lr))),
        zero(hn::Zero(d)) {}
  template <int K>
  HWY_INLINE void apply(V& p, V g, V& m, V&, V&) const {
    g = hn::Mul(g, factor);
    const V direction = hn::MulAdd(beta1, m, hn::Mul(new1, g));
    const V down = hn::IfThenElseZero(hn::Gt(direction, zero), minus_lr);
    const V up = hn::IfThenElseZero(hn::Lt(direction, zero), minus_lr);
    p = hn::MulAdd(p, keep, hn::Sub(down, up));
    m = hn::MulAdd(beta2, m, hn::Mul(new2, g));
  }
};

// --- element types

template <class D16, class D32>
HWY_INLINE hn::Vec<D32> to_f32(D32 d32, D16 d16, const uint16_t* from, Type type) {
  if (type == Type::bf16)
    return hn::BitCast(d32, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D32>(), hn::LoadU(d16, from))));
  const hn::Rebind<hwy::float16_t, D32> half;
  return hn::PromoteTo(d32, hn::BitCast(half, hn::LoadU(d16, from)));
}

/// Rounds to the nearest, ties to even, as libtorch does; NaN stays NaN.
template <class D16, class D32>
HWY_INLINE void from_f32(hn::Vec<D32> value, D32, D16 d16, uint16_t* to, Type type) {
  if (type != Type::bf16) {
    const hn::Rebind<hwy::float16_t, D32> half;
    return hn::StoreU(hn::BitCast(d16, hn::DemoteTo(half, value)), d16, to);
  }
  const hn::RebindToUnsigned<D32> bits32;
  const auto bits = hn::BitCast(bits32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(bits32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(bits32, 0x7FFF))));
  const auto nan = hn::Set(bits32, 0x7FC0);
  const auto result = hn::IfThenElse(hn::RebindMask(bits32, hn::IsNaN(value)), nan, rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<decltype(bits32)>(), result)), d16, to);
}

constexpr size_t window_size = 1024;  // elements; the windows of one step stay in the first-level cache

/// Up to window_size elements of an array as floats: in place if they are floats, else converted into a buffer.
class Window {
 public:
  static constexpr bool in_place(Type type) { return type == Type::f32; }

  float* open(const void* array, Type type, size_t at, size_t n) {
    if (in_place(type)) return const_cast<float*>(static_cast<const float*>(array)) + at;
    convert(static_cast<const uint16_t*>(array) + at, buffer_, n,
            [&](auto d32, auto d16, const uint16_t* from, float* to) {
              hn::StoreU(to_f32(d32, d16, from, type), d32, to);
            });
    return buffer_;
  }
  void close(void* array, Type type, size_t at, size_t n) const { write(buffer_, array, type, at, n); }

  static void write(const float* values, void* array, Type type, size_t at, size_t n) {
    if (in_place(type)) return;
    convert(values, static_cast<uint16_t*>(array) + at, n, [&](auto d32, auto d16, const float* from, uint16_t* to) {
      from_f32(hn::LoadU(d32, from), d32, d16, to, type);
    });
  }

 private:
  /// Calls `body` on whole vectors; the rest goes through arrays of a whole vector.
  template <class From, class To, class Body>
  static void convert(const From* from, To* to, size_t n, Body body) {
    const hn::ScalableTag<float> d32;
    const hn::Rebind<uint16_t, decltype(d32)> d16;
    const size_t lanes = hn::Lanes(d32);
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) body(d32, d16, from + i, to + i);
    if (i == n) return;
    From last_from[hn::MaxLanes(hn::ScalableTag<float>())] = {};
    To last_to[hn::MaxLanes(hn::ScalableTag<float>())];
    std::memcpy(last_from, from + i, (n - i) * sizeof(From));
    body(d32, d16, last_from, last_to);
    std::memcpy(to + i, last_to, (n - i) * sizeof(To));
  }

  alignas(64) float buffer_[window_size];
};

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
    Window::write(a.p, t.param, types.param, at, n);
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

namespace {

constexpr int64_t chunk_size = 16384;  // elements

/// All tensors as one list of chunks, so that many small tensors cost one parallel region.
template <class Rule, class Kernel>
void step_all(std::span<const StepTensor<Rule>> tensors, StepTypes types, Kernel kernel) {
  std::vector<int64_t> first_chunk = {0};
  for (const StepTensor<Rule>& t : tensors)
    first_chunk.push_back(first_chunk.back() + (t.size + chunk_size - 1) / chunk_size);
  parallel_chunks(first_chunk.back(), [&](int64_t chunk) {
    const auto after = std::upper_bound(first_chunk.begin(), first_chunk.end(), chunk);
    const auto index = static_cast<size_t>(after - first_chunk.begin() - 1);
    const int64_t begin = (chunk - first_chunk[index]) * chunk_size;
    const int64_t end = std::min(begin + chunk_size, tensors[index].size);
    kernel(tensors[index], types, static_cast<size_t>(begin), static_cast<size_t>(end));
  });
}

}  // namespace

void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types) {
  step_all(tensors, types, HWY_DYNAMIC_DISPATCH(step_sgd));
}
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types) {
  step_all(tensors, types, HWY_DYNAMIC_DISPATCH(step_adam));
}
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types) {
  step_all(tensors, types, HWY_DYNAMIC_DISPATCH(step_rmsprop));
}
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types) {
  step_all(tensors, types, HWY_DYNAMIC_DISPATCH(step_adagrad));
}
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types) {
  step_all(tensors, types, HWY_DYNAMIC_DISPATCH(step_lion));
}

}  // namespace bellows::kernels::cpu
#endif
