#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

/// Arguments of norm_forward(): LayerNorm or RMSNorm over `rows` contiguous rows of `columns` values:
///   LayerNorm   y = (x − mean) · rstd · weight + bias,  rstd = 1 / sqrt(variance + eps)
///   RMSNorm     y = x · rstd · weight + bias,           rstd = 1 / sqrt(mean of squares + eps)
/// x and y have the type `dtype`: float, double, BFloat16 or Half. All other arrays have the accumulation type: double
/// for double, otherwise float.
struct NormForward {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, columns = 0;
  double eps = 1e-5;
  const void* x = nullptr;
  const void* weight = nullptr;  ///< [columns]; null for ones
  const void* bias = nullptr;    ///< [columns]; null for zeros
  void* y = nullptr;
  void* mean = nullptr;  ///< [rows], output; null for RMSNorm
  void* rstd = nullptr;  ///< [rows], output
};

/// Arguments of norm_backward(). `mean` and `rstd` are the outputs of the forward pass.
struct NormBackward {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, columns = 0;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;  ///< [columns]; null for ones
  const void* mean = nullptr;    ///< [rows]; null for RMSNorm
  const void* rstd = nullptr;    ///< [rows]
  void* dx = nullptr;            ///< shape and type of x; null if not needed
  void* dweight = nullptr;       ///< [columns], accumulation type; null if not needed
  void* dbias = nullptr;         ///< [columns], accumulation type; null if not needed
};

/// Numerics: computes statistics in two passes over blocks that fit in the cache and combines the blocks by Chan's
///           formula, so that a large mean loses no precision. Bit-identical for any number of threads: rows are
///           independent, and gradients of weight and bias are summed over chunks of rows that depend only on the
///           shape. The order of sums depends on the instruction set. Compared with ref:: in
///           tests/nn/norm_kernel_test.cpp.
/// Cost:     forward reads x and writes y once. Backward reads x and dy and writes dx once; its partial sums have at
///           most an eighth of x's number of values.
/// Threads:  runs on libtorch's intra-op threads; safe to call from several threads
void norm_forward(const NormForward& args);
void norm_backward(const NormBackward& args);

/// Reference implementation in plain C++: computes in double, one value at a time.
namespace ref {
void norm_forward(const NormForward& args);
void norm_backward(const NormBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
