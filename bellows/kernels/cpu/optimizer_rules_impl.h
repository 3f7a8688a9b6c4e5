// Update rules on vectors, and conversion of arrays of any element type to float. This header is included once per
// instruction set.
#if defined(BELLOWS_KERNELS_OPTIMIZER_RULES) == defined(HWY_TARGET_TOGGLE)
#ifdef BELLOWS_KERNELS_OPTIMIZER_RULES
#undef BELLOWS_KERNELS_OPTIMIZER_RULES
#else
#define BELLOWS_KERNELS_OPTIMIZER_RULES
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "bellows/kernels/optimizer_step.h"
#include "bellows/kernels/stochastic_round.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// --- The rules of optimizer_formula.h on vectors. K is the number of state arrays.

template <class D, class Rule>
struct VectorFormula;

/// Returns the scaled gradient with weight decay. If there is no decay, the weight is not used, because 0 · infinity is
/// NaN.
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
  V factor, coupled_decay, keep, beta1, new1, beta2, new2, root_new2, eps, minus_step_size, root_scale, half_root_scale;
  V factored_new1, factored_root_new2;
  bool has_decay, divides;
  VectorFormula(D d, const AdamRule& r)
      : factor(hn::Set(d, hn::TFromD<D>(r.grad_factor))),
        coupled_decay(hn::Set(d, hn::TFromD<D>(r.decoupled ? 0 : r.weight_decay))),
        keep(hn::Set(d, hn::TFromD<D>(r.decoupled ? 1 - r.lr * r.weight_decay : 1))),
        beta1(hn::Set(d, hn::TFromD<D>(r.beta1))),
        new1(hn::Set(d, hn::TFromD<D>(1 - r.beta1))),
        beta2(hn::Set(d, hn::TFromD<D>(r.beta2))),
        new2(hn::Set(d, hn::TFromD<D>(1 - r.beta2))),
        root_new2(hn::Set(d, hn::TFromD<D>(std::sqrt(1 - r.beta2)))),
        eps(hn::Set(d, hn::TFromD<D>(r.eps))),
        minus_step_size(hn::Set(d, hn::TFromD<D>(-r.lr / (1 - std::pow(r.beta1, r.step))))),
        root_scale(hn::Set(d, hn::TFromD<D>(1 / std::sqrt(1 - std::pow(r.beta2, r.step))))),
        half_root_scale(hn::Set(d, hn::TFromD<D>(0.5 / std::sqrt(1 - std::pow(r.beta2, r.step))))),
        factored_new1(hn::Set(d, hn::TFromD<D>((1 - r.beta1) * r.grad_factor))),
        factored_root_new2(hn::Set(d, hn::TFromD<D>(std::sqrt(1 - r.beta2) * r.grad_factor))),
        has_decay(!r.decoupled && r.weight_decay != 0),
        divides(hn::MaxLanes(d) < 16 || r.eps < 1e-10) {}
  /// Params: Forgotten – m and v are already multiplied by beta1 and beta2. This is used for low-bit state, whose step
  ///                     is not limited by memory bandwidth. With wide vectors, roots and divisions would take most of
  ///                     its time.
  template <int K, bool Forgotten = false>
  HWY_INLINE void apply(V& p, V g, V& m, V& v, V& v_max) const {
    g = decayed(g, factor, has_decay, coupled_decay, p);
    if constexpr (Forgotten) {
      m = hn::MulAdd(new1, g, m);
      const V root = hn::Mul(root_new2, g);
      v = hn::MulAdd(root, root, v);
    } else {
      m = hn::MulAdd(beta1, m, hn::Mul(new1, g));
      v = hn::MulAdd(beta2, v, hn::Mul(hn::Mul(new2, g), g));
    }
    if constexpr (Forgotten) {
      if (!divides) return apply_undivided(p, m, v);
    }
    if constexpr (K == 3) v_max = hn::IfThenElse(hn::Gt(v_max, v), v_max, v);
    const V root = hn::Sqrt(K == 3 ? v_max : v);
    const V update = hn::Div(hn::Mul(minus_step_size, m), hn::MulAdd(root, root_scale, eps));
    p = hn::MulAdd(p, keep, update);
  }

  /// Whether apply_usual() can be used. This requires that there is no coupled weight decay, and that eps is large
  /// enough for approximate roots and quotients.
  bool usual() const { return !has_decay && !divides; }
  /// Like apply<2, true>(), but without branches.
  HWY_INLINE void apply_usual(V& p, V g, V& m, V& v) const {
    m = hn::MulAdd(factored_new1, g, m);
    const V root = hn::Mul(factored_root_new2, g);
    v = hn::MulAdd(root, root, v);
    apply_undivided(p, m, v);
  }

 private:
  /// Exact within a few units in the last place of the step. It uses the processor's 14-bit approximations of root and
  /// reciprocal, each with one Newton step. The root of a subnormal number is negligible compared with eps.
  HWY_INLINE void apply_undivided(V& p, V m, V v) const {
    const D d;
    const V normal = hn::Max(v, hn::Set(d, 0x1p-126f));
    const V inverse = hn::ApproximateReciprocalSqrt(normal);
    const V rough = hn::Mul(normal, inverse);
    const V twice_root = hn::Mul(rough, hn::NegMulAdd(rough, inverse, hn::Set(d, 3)));
    const V denominator = hn::MulAdd(twice_root, half_root_scale, eps);
    const V quotient = hn::ApproximateReciprocal(denominator);
    const V correction = hn::NegMulAdd(denominator, quotient, hn::Set(d, 2));
    p = hn::MulAdd(hn::Mul(hn::Mul(minus_step_size, m), quotient), correction, hn::Mul(p, keep));
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

// --- Element types

template <class D16, class D32>
HWY_INLINE hn::Vec<D32> to_f32(D32 d32, D16 d16, const uint16_t* from, Type type) {
  if (type == Type::bf16)
    return hn::BitCast(d32, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D32>(), hn::LoadU(d16, from))));
  const hn::Rebind<hwy::float16_t, D32> half;
  return hn::PromoteTo(d32, hn::BitCast(half, hn::LoadU(d16, from)));
}

/// Rounds to nearest even, like libtorch. NaN stays NaN.
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

/// Rounds stochastically with the bits of rounding_bits(). The probability of rounding up is the fractional position
/// between the two neighboring bf16 values. Values that are not finite are rounded to nearest.
template <class D16, class D32>
HWY_INLINE void bf16_at_random(hn::Vec<D32> value, D32, D16 d16, uint16_t* to, uint32_t key, size_t i) {
  const hn::RebindToUnsigned<D32> d;
  auto x = hn::Add(hn::Mul(hn::Iota(d, static_cast<uint32_t>(i)), hn::Set(d, 0x9E3779B9)), hn::Set(d, key));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d, 0x7FEB352D));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(d, 0x846CA68B));
  const auto bits = hn::BitCast(d, value);
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::ShiftRight<16>(x)));
  const auto nan = hn::IfThenElseZero(hn::RebindMask(d, hn::IsNaN(value)), hn::Set(d, 0x40));
  const auto finite = hn::RebindMask(d, hn::IsFinite(value));
  const auto result = hn::IfThenElse(finite, rounded, hn::Or(hn::ShiftRight<16>(bits), nan));
  hn::StoreU(hn::TruncateTo(d16, result), d16, to);
}

/// How updated parameters are rounded.
struct Rounding {
  bool stochastic = false;
  uint64_t seed = 0;
};

constexpr size_t window_size = rounding_window;  // elements; the windows of one step stay in the L1 cache

/// Up to window_size elements of an array as floats. Floats are accessed in place, and other types are converted into a
/// buffer.
class Window {
 public:
  static constexpr bool in_place(Type type) { return type == Type::f32; }

  float* open(const void* array, Type type, size_t at, size_t n) {
    if (in_place(type)) return const_cast<float*>(static_cast<const float*>(array)) + at;
    convert(static_cast<const uint16_t*>(array) + at, buffer_, n,
            [&](auto d32, auto d16, const uint16_t* from, float* to, size_t) {
              hn::StoreU(to_f32(d32, d16, from, type), d32, to);
            });
    return buffer_;
  }
  void close(void* array, Type type, size_t at, size_t n) const { write(buffer_, array, type, at, n); }

  /// Params: at, n – a range within one window of stochastic rounding (stochastic_round.h)
  static void write(const float* values, void* array, Type type, size_t at, size_t n, Rounding rounding = {}) {
    if (in_place(type)) return;
    uint16_t* const to = static_cast<uint16_t*>(array) + at;
    if (rounding.stochastic && type == Type::bf16) {
      const uint32_t key = rounding_key(rounding.seed, at);
      return convert(values, to, n, [&](auto d32, auto d16, const float* from, uint16_t* out, size_t i) {
        bf16_at_random(hn::LoadU(d32, from), d32, d16, out, key, at % window_size + i);
      });
    }
    convert(values, to, n, [&](auto d32, auto d16, const float* from, uint16_t* out, size_t) {
      from_f32(hn::LoadU(d32, from), d32, d16, out, type);
    });
  }

 private:
  /// Calls `body(…, i)` for each whole vector, where i is the vector's first element. The remaining elements are copied
  /// to arrays with the size of one vector.
  template <class From, class To, class Body>
  static void convert(const From* from, To* to, size_t n, Body body) {
    const hn::ScalableTag<float> d32;
    const hn::Rebind<uint16_t, decltype(d32)> d16;
    const size_t lanes = hn::Lanes(d32);
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) body(d32, d16, from + i, to + i, i);
    if (i == n) return;
    From last_from[hn::MaxLanes(hn::ScalableTag<float>())] = {};
    To last_to[hn::MaxLanes(hn::ScalableTag<float>())];
    std::memcpy(last_from, from + i, (n - i) * sizeof(From));
    body(d32, d16, last_from, last_to, i);
    std::memcpy(to + i, last_to, (n - i) * sizeof(To));
  }

  alignas(64) float buffer_[window_size];
};

// --- steps with sums over a tensor

/// Calls `body(d, i)` for whole vectors, then for the remainder with fewer lanes.
template <class T, class Body>
HWY_INLINE void for_lanes(size_t n, Body body) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 4> four;
  const hn::CappedTag<T, 1> one;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) body(d, i);
  for (; i + hn::Lanes(four) <= n; i += hn::Lanes(four)) body(four, i);
  for (; i < n; ++i) body(one, i);
}

/// A sum over calls with one or many lanes.
template <class T>
class Sum {
 public:
  HWY_INLINE Sum() : lanes_(hn::Zero(hn::ScalableTag<T>())) {}
  HWY_INLINE void add(hn::ScalableTag<T>, hn::Vec<hn::ScalableTag<T>> v) { lanes_ = hn::Add(lanes_, v); }
  template <class D>
  HWY_INLINE void add(D d, hn::Vec<D> v) {
    rest_ += hn::GetLane(hn::SumOfLanes(d, v));
  }
  HWY_INLINE double get() const {
    const hn::ScalableTag<T> d;
    return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, lanes_))) + static_cast<double>(rest_);
  }

 private:
  hn::Vec<hn::ScalableTag<T>> lanes_;
  T rest_ = 0;
};

/// Parts of arrays as T: in place, or converted in a buffer.
class DoubleWindow {
 public:
  double* open(const void* array, Type, size_t at, size_t) {
    return const_cast<double*>(static_cast<const double*>(array)) + at;
  }
  void close(void*, Type, size_t, size_t) const {}
};
class FloatWindow : public Window {
 public:
  void close(void* array, Type type, size_t at, size_t n) const {
    if (!in_place(type)) Window::close(array, type, at, n);
  }
};
template <class T>
using WindowOf = std::conditional_t<std::is_same_v<T, double>, DoubleWindow, FloatWindow>;

}  // namespace bellows::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per instruction set
