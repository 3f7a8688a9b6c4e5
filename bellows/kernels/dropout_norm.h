#pragma once

#include <cstdint>

#include "bellows/kernels/layer_norm.h"

namespace bellows::kernels {

/// Determines the values that dropout keeps. Whether a value is kept depends only on the seed, the row and the column,
/// so no mask is stored.
struct DropoutMask {
  uint64_t seed = 0;
  double p = 0;  ///< probability of dropping a value, in [0, 1); kept values are divided by 1 − p
};

/// Arguments of dropout_norm_forward(), which computes sum = residual + dropout(x) and the norm of `sum`.
struct DropoutNormForward {
  NormForward norm;  ///< norm.x is not read; shape and dtype apply to all tensors
  DropoutMask dropout;
  const void* x = nullptr;
  const void* residual = nullptr;
  void* sum = nullptr;
};

/// Arguments of dropout_norm_backward(), which computes the gradients. The gradient of the residual is equal to the
/// gradient of the sum, and is written to `norm.dx`.
struct DropoutNormBackward {
  NormBackward norm;  ///< norm.x is the sum; norm.dx is required if `dx` is given
  DropoutMask dropout;
  const void* dsum = nullptr;  ///< gradient of the sum from its other uses; null if there are no other uses
  void* dx = nullptr;          ///< null if it is not needed
};

/// Numerics: like norm_forward() on the sum, which is rounded once to the tensors' dtype. The mask is equal to
///           ref::dropout_keeps() on all processors. tests/nn/dropout_norm_test.cpp compares the results with the
///           reference implementation
/// Cost:     forward reads x and residual once and writes sum and y once. Backward reads sum and dy and writes both
///           gradients
/// Threads:  like norm_forward()
void dropout_norm_forward(const DropoutNormForward& args);
void dropout_norm_backward(const DropoutNormBackward& args);

/// Reference implementations in plain C++. They compute in double, one value at a time.
namespace ref {
bool dropout_keeps(const DropoutMask& dropout, int64_t row, int64_t column);
void dropout_norm_forward(const DropoutNormForward& args);
void dropout_norm_backward(const DropoutNormBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
