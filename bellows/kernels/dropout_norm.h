#pragma once

#include <cstdint>

#include "bellows/kernels/norm.h"

namespace bellows::kernels {

/// Which values dropout keeps: a function of seed, row and column, so that no mask is kept.
struct DropoutMask {
  uint64_t seed = 0;
  double p = 0;  ///< share of what is dropped, in [0, 1); what is kept is divided by 1 − p
};

/// sum = residual + dropout(x), and the norm of the sum.
struct DropoutNormForward {
  NormForward norm;  ///< its x is not read; of the shape and dtype of all tensors
  DropoutMask dropout;
  const void* x = nullptr;
  const void* residual = nullptr;
  void* sum = nullptr;
};

/// The gradients of that pass. The residual's is the sum's, which is `norm.dx`.
struct DropoutNormBackward {
  NormBackward norm;  ///< its x is the sum; dx must be given where `dx` is
  DropoutMask dropout;
  const void* dsum = nullptr;  ///< a gradient that the sum has of its own; null: none
  void* dx = nullptr;          ///< null: not wanted
};

/// Numerics: as norm_forward()'s over the sum, which is rounded to the tensors' dtype once. The mask is ref::dropout_keeps(),
///           on every kind of processor. Against ref:: in tests/nn/dropout_norm_test.cpp.
/// Cost:     forward reads x and residual and writes sum and y once; backward reads sum and dy and writes both gradients
/// Threads:  as norm_forward()
void dropout_norm_forward(const DropoutNormForward& args);
void dropout_norm_backward(const DropoutNormBackward& args);

/// The same in plain C++ and double, one value after the other: what the fast kernels are checked against.
namespace ref {
bool dropout_keeps(const DropoutMask& dropout, int64_t row, int64_t column);
void dropout_norm_forward(const DropoutNormForward& args);
void dropout_norm_backward(const DropoutNormBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
