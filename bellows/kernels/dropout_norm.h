#pragma once

#include <cstdint>

#include "bellows/kernels/layer_norm.h"

namespace bellows::kernels {

/// Selects the values that dropout keeps. The selection is a function of seed, row and column, so no mask is stored.
struct DropoutMask {
  uint64_t seed = 0;
  double p = 0;  ///< probability of dropping a value, in [0, 1); kept values are divided by 1 − p
};

/// Arguments of dropout_norm_forward(): sum = residual + dropout(x), and the norm of `sum`.
struct DropoutNormForward {
  NormForward norm;  ///< norm.x is not read; shape and dtype apply to all tensors
  DropoutMask dropout;
  const void* x = nullptr;
  const void* residual = nullptr;
  void* sum = nullptr;
};

/// Arguments of dropout_norm_backward(): the gradients of DropoutNormForward. The gradient of the residual equals that
/// of the sum; it is written to `norm.dx`.
struct DropoutNormBackward {
  NormBackward norm;  ///< norm.x is the sum; norm.dx is required if `dx` is given
  DropoutMask dropout;
  const void* dsum = nullptr;  ///< gradient of the sum from its other uses; null if there is none
  void* dx = nullptr;          ///< null if not needed
};

/// Numerics: as norm_forward() on the sum, which is rounded once to the tensors' dtype. The mask equals
///           ref::dropout_keeps() on every kind of processor. Compared with ref:: in tests/nn/dropout_norm_test.cpp.
/// Cost:     forward reads x and residual and writes sum and y once; backward reads sum and dy and writes both
///           gradients
/// Threads:  as norm_forward()
void dropout_norm_forward(const DropoutNormForward& args);
void dropout_norm_backward(const DropoutNormBackward& args);

/// Reference implementation in plain C++: computes in double, one value at a time.
namespace ref {
bool dropout_keeps(const DropoutMask& dropout, int64_t row, int64_t column);
void dropout_norm_forward(const DropoutNormForward& args);
void dropout_norm_backward(const DropoutNormBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
