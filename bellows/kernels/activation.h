#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

enum class Activation {
  gelu,       ///< x · (1 + erf(x / √2)) / 2
  gelu_tanh,  ///< x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2
  swiglu,     ///< x · sigmoid(x) · up
};

/// Arguments of activation_forward(), which computes y = activation(x) for `count` values of type float, double,
/// BFloat16 or Half.
struct ActivationForward {
  Activation activation = Activation::gelu;
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t count = 0;
  const void* x = nullptr;
  const void* up = nullptr;  ///< only for SwiGLU
  void* y = nullptr;
};

/// Arguments of activation_backward(), which computes gradients from the inputs of the forward pass only. It can also
/// recompute y, so that the next layer does not need to save y.
struct ActivationBackward {
  Activation activation = Activation::gelu;
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t count = 0;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* up = nullptr;  ///< only for SwiGLU
  void* dx = nullptr;        ///< may be the same memory as dy
  void* dup = nullptr;       ///< only for SwiGLU: gradient of `up`
  void* y = nullptr;         ///< null if y is not needed
};

/// Numerics: double values are computed in double, and all other types in float. The error of erf is at most 3e-7, and
///           the error of e^x is at most one unit in the last place. Results are bit-identical for any number of
///           threads, and both functions compute the same y. tests/nn/activation_test.cpp compares them with the
///           reference implementation
/// Cost:     reads or writes each tensor once
/// Threads:  thread-safe; uses libtorch's intra-op threads
void activation_forward(const ActivationForward& args);
void activation_backward(const ActivationBackward& args);

/// Reference implementations in plain C++. They compute in double, one value at a time.
namespace ref {
void activation_forward(const ActivationForward& args);
void activation_backward(const ActivationBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
