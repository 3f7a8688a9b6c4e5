#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

enum class Activation {
  gelu,       ///< x · (1 + erf(x / √2)) / 2
  gelu_tanh,  ///< x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2
  swiglu,     ///< x · sigmoid(x) · up
};

/// y = activation(x) over `count` values of float, double, BFloat16 or Half.
struct ActivationForward {
  Activation activation = Activation::gelu;
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t count = 0;
  const void* x = nullptr;
  const void* up = nullptr;  ///< swiglu's factor
  void* y = nullptr;
};

/// Its gradients, from the inputs alone; and once more y, for a layer behind it that did not keep it.
struct ActivationBackward {
  Activation activation = Activation::gelu;
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t count = 0;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* up = nullptr;  ///< swiglu's factor
  void* dx = nullptr;        ///< may be dy
  void* dup = nullptr;       ///< of swiglu's factor
  void* y = nullptr;         ///< null: not wanted
};

/// Numerics: in float for all but double; erf to 3e-7, e^x to a unit in the last place. The same bits for every number of
///           threads and for y in both. Against ref:: in tests/nn/activation_test.cpp.
/// Cost:     each tensor read or written once
/// Threads:  runs on libtorch's intra-op threads; safe to call from several threads
void activation_forward(const ActivationForward& args);
void activation_backward(const ActivationBackward& args);

/// The same in plain C++ and double, one value after the other: what the fast kernels are checked against.
namespace ref {
void activation_forward(const ActivationForward& args);
void activation_backward(const ActivationBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
