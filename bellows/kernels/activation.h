#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

enum class Activation {
  gelu,       ///< x · (1 + erf(x / √2)) / 2
  gelu_tanh,  ///< x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2
  swiglu,     ///< x · sigmoid(x) · up
};

/// Arguments of activation_forward(): y = activation(x) over `count` values of type float, double, BFloat16 or Half.
struct ActivationForward {
  Activation activation = Activation::gelu;
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t count = 0;
  const void* x = nullptr;
  const void* up = nullptr;  ///< SwiGLU only
  void* y = nullptr;
};

/// Arguments of activation_backward(): the gradients of ActivationForward, computed from its inputs alone. It can also
/// recompute y, so that the next layer does not need to save it.
struct ActivationBackward {
  Activation activation = Activation::gelu;
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t count = 0;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* up = nullptr;  ///< SwiGLU only
  void* dx = nullptr;        ///< may be the same memory as dy
  void* dup = nullptr;       ///< SwiGLU only: gradient of `up`
  void* y = nullptr;         ///< null if not needed
};

/// Numerics: computes in double for double, otherwise in float. The error of erf is at most 3e-7, that of e^x one unit
///           in the last place. Bit-identical for any number of threads; both functions compute bit-identical y.
///           Compared with ref:: in tests/nn/activation_test.cpp.
/// Cost:     reads or writes each tensor once
/// Threads:  runs on libtorch's intra-op threads; safe to call from several threads
void activation_forward(const ActivationForward& args);
void activation_backward(const ActivationBackward& args);

/// Reference implementation in plain C++: computes in double, one value at a time.
namespace ref {
void activation_forward(const ActivationForward& args);
void activation_backward(const ActivationBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
