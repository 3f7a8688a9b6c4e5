#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

/// Arguments of norm_forward(), which computes LayerNorm or RMSNorm for `rows` contiguous rows of `columns` values:
///   - LayerNorm: y = (x − mean) · rstd · weight + bias, with rstd = 1 / sqrt(variance + eps)
///   - RMSNorm: y = x · rstd · weight + bias, with rstd = 1 / sqrt(mean of squares + eps)
///
/// x and y have the type `dtype`: float, double, BFloat16 or Half. All other arrays have the accumulation type, which
/// is double if `dtype` is double, else float.
struct NormForward {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, columns = 0;
  double eps = 1e-5;
  const void* x = nullptr;
  const void* weight = nullptr;  ///< [columns]; if null, all weights are 1
  const void* bias = nullptr;    ///< [columns]; if null, all biases are 0
  void* y = nullptr;
  void* mean = nullptr;  ///< [rows], output; null for RMSNorm
  void* rstd = nullptr;  ///< [rows], output
};

/// Arguments of norm_backward(). `mean` and `rstd` are outputs of the forward pass.
struct NormBackward {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, columns = 0;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;  ///< [columns]; if null, all weights are 1
  const void* mean = nullptr;    ///< [rows]; null for RMSNorm
  const void* rstd = nullptr;    ///< [rows]
  void* dx = nullptr;            ///< shape and type of x; null if it is not needed
  void* dweight = nullptr;       ///< [columns], accumulation type; null if it is not needed
  void* dbias = nullptr;         ///< [columns], accumulation type; null if it is not needed
};

/// Numerics: statistics are computed in two passes over blocks that fit in the cache. Chan's formula combines the
///           blocks, so that a large mean does not reduce precision. Results are bit-identical for any number of
///           threads. Rows are independent. The gradients of weight and bias are summed over chunks of rows, and the
///           division into chunks depends only on the shape. The order of sums depends on the instruction set.
///           tests/nn/norm_kernel_test.cpp compares the results with the reference implementation
/// Cost:     forward reads x once and writes y once. Backward reads x and dy once and writes dx once. Its partial sums
///           have at most an eighth as many values as x
/// Threads:  thread-safe; uses libtorch's intra-op threads
void norm_forward(const NormForward& args);
void norm_backward(const NormBackward& args);

/// Reference implementations in plain C++. They compute in double, one value at a time.
namespace ref {
void norm_forward(const NormForward& args);
void norm_backward(const NormBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
