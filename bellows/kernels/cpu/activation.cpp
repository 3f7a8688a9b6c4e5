// GELU and SwiGLU, compiled once per instruction set that Highway supports; the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/activation.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>
// clang-format on

#include <cmath>

#include "bellows/kernels/activation.h"
#include "bellows/kernels/cpu/columns_impl.h"
#include "bellows/kernels/cpu/sigmoid_impl.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

template <class V>
struct WithSlope {
  V value, slope;
};

/// The compiler removes whichever of value and slope is not used.
template <Activation activation, class D>
HWY_INLINE WithSlope<hn::Vec<D>> activation_of(D d, hn::Vec<D> x) {
  using A = hn::TFromD<D>;
  const auto c = [&](double value) HWY_ATTR { return hn::Set(d, static_cast<A>(value)); };
  const auto one = c(1), x2 = hn::Mul(x, x);
  if constexpr (activation == Activation::gelu) {
    const auto cdf = hn::MulAdd(erf_of(d, hn::Mul(x, c(M_SQRT1_2))), c(0.5), c(0.5));
    const auto pdf = hn::Mul(hn::Exp(d, hn::Mul(x2, c(-0.5))), c(0.39894228040143267794));
    return {hn::Mul(x, cdf), hn::MulAdd(x, pdf, cdf)};
  } else if constexpr (activation == Activation::gelu_tanh) {
    // (1 + tanh(u)) / 2 is sigmoid(2u).
    const auto twice = hn::Mul(hn::Mul(x, hn::MulAdd(x2, c(0.044715), one)), c(1.59576912160573071176));
    const auto s = sigmoid_of(d, twice);
    const auto inner = hn::Mul(hn::MulAdd(x2, c(3 * 0.044715), one), c(1.59576912160573071176));
    return {hn::Mul(x, s), hn::MulAdd(hn::Mul(x, inner), hn::Mul(s, hn::Sub(one, s)), s)};
  } else {
    const auto s = sigmoid_of(d, x);
    return {hn::Mul(x, s), hn::MulAdd(hn::Mul(x, s), hn::Sub(one, s), s)};
  }
}

template <Activation activation, class T>
void forward_values(const ActivationForward& args, int64_t begin, int64_t end) {
  const hn::ScalableTag<Accumulate<T>> d;
  const T* x = static_cast<const T*>(args.x) + begin;
  const T* up = activation == Activation::swiglu ? static_cast<const T*>(args.up) + begin : nullptr;
  T* y = static_cast<T*>(args.y) + begin;
  for_columns(d, static_cast<size_t>(end - begin), [&](auto lanes, size_t i) HWY_ATTR {
    auto value = activation_of<activation>(d, lanes.load(d, x + i)).value;
    if constexpr (activation == Activation::swiglu) value = hn::Mul(value, lanes.load(d, up + i));
    lanes.store(d, value, y + i);
  });
}

template <Activation activation, class T>
void backward_values(const ActivationBackward& args, int64_t begin, int64_t end) {
  const hn::ScalableTag<Accumulate<T>> d;
  const auto at = [&](void* pointer) { return pointer ? static_cast<T*>(pointer) + begin : nullptr; };
  const T* x = static_cast<const T*>(args.x) + begin;
  const T* dy = static_cast<const T*>(args.dy) + begin;
  const T* up = activation == Activation::swiglu ? static_cast<const T*>(args.up) + begin : nullptr;
  T *dx = at(args.dx), *dup = at(args.dup), *y = at(args.y);
  for_columns(d, static_cast<size_t>(end - begin), [&](auto lanes, size_t i) HWY_ATTR {
    auto [value, slope] = activation_of<activation>(d, lanes.load(d, x + i));
    const auto gradient = lanes.load(d, dy + i);
    if constexpr (activation == Activation::swiglu) {
      const auto factor = lanes.load(d, up + i);
      lanes.store(d, hn::Mul(gradient, value), dup + i);
      value = hn::Mul(value, factor);
      slope = hn::Mul(slope, factor);
    }
    if (y) lanes.store(d, value, y + i);
    lanes.store(d, hn::Mul(gradient, slope), dx + i);
  });
}

/// action(integral constant of the activation, pointer to the type of the values).
template <class Action>
HWY_INLINE void with_activation(Activation activation, c10::ScalarType dtype, Action action) {
  with_values(dtype, [&](auto* type) {
    switch (activation) {
      case Activation::gelu:
        return action(std::integral_constant<Activation, Activation::gelu>(), type);
      case Activation::gelu_tanh:
        return action(std::integral_constant<Activation, Activation::gelu_tanh>(), type);
      default:
        return action(std::integral_constant<Activation, Activation::swiglu>(), type);
    }
  });
}

void activation_forward_values(const ActivationForward& args, int64_t begin, int64_t end) {
  with_activation(args.activation, args.dtype, [&](auto which, auto* type) {
    forward_values<decltype(which)::value, std::remove_pointer_t<decltype(type)>>(args, begin, end);
  });
}

void activation_backward_values(const ActivationBackward& args, int64_t begin, int64_t end) {
  with_activation(args.activation, args.dtype, [&](auto which, auto* type) {
    backward_values<decltype(which)::value, std::remove_pointer_t<decltype(type)>>(args, begin, end);
  });
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

#include "bellows/kernels/parallel.h"

namespace bellows::kernels {

HWY_EXPORT(activation_forward_values);
HWY_EXPORT(activation_backward_values);

namespace {

/// Calls action(begin, end) for chunks whose size is a multiple of every vector length, so that a value's position does
/// not change its bits.
template <class Action>
void for_pieces(int64_t count, Action action) {
  constexpr int64_t piece = 16384;
  parallel_chunks((count + piece - 1) / piece, [&](int64_t i) { action(i * piece, std::min(count, (i + 1) * piece)); });
}

}  // namespace

void activation_forward(const ActivationForward& args) {
  for_pieces(args.count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(activation_forward_values)(args, begin, end);
  });
}

void activation_backward(const ActivationBackward& args) {
  for_pieces(args.count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(activation_backward_values)(args, begin, end);
  });
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
