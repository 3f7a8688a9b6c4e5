#pragma once

#include <cmath>

#include "bellows/kernels/activation.h"
#include "bellows/kernels/host_device.h"

// Scalar formulas of the activations and their derivatives, shared by kernels/ref and kernels/cuda.
namespace bellows::kernels {

template <class T>
struct ActivationPoint {
  T value, slope;
};

/// Returns the activation and its derivative at x. For SwiGLU, these are the value and derivative of x · sigmoid(x).
template <Activation activation, class T>
BELLOWS_HOST_DEVICE ActivationPoint<T> activation_at(T x) {
  if constexpr (activation == Activation::gelu) {
    const T cdf = (1 + std::erf(x * static_cast<T>(0.70710678118654752440))) / 2;
    return {x * cdf, cdf + x * std::exp(-x * x / 2) * static_cast<T>(0.39894228040143267794)};
  } else if constexpr (activation == Activation::gelu_tanh) {
    const T k = static_cast<T>(0.79788456080286535588), cubic = static_cast<T>(0.044715);
    const T t = std::tanh(k * (x + cubic * x * x * x));
    return {x * (1 + t) / 2, (1 + t) / 2 + x * (1 - t * t) * k * (1 + 3 * cubic * x * x) / 2};
  } else {
    const T s = 1 / (1 + std::exp(-x));
    return {x * s, s * (1 + x * (1 - s))};
  }
}

}  // namespace bellows::kernels
