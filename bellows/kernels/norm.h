#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

/// One forward pass of LayerNorm or RMSNorm over `rows` rows of `columns` values that lie one behind the other:
///   LayerNorm   y = (x − mean) · rstd · weight + bias,  rstd = 1 / sqrt(variance + eps)
///   RMSNorm     y = x · rstd · weight + bias,           rstd = 1 / sqrt(mean of squares + eps)
/// x and y are of `dtype`: float, double, BFloat16 or Half. All else is of the accumulation type: double for double,
/// otherwise float.
struct NormForward {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, columns = 0;
  double eps = 1e-5;
  const void* x = nullptr;
  const void* weight = nullptr;  ///< [columns]; null: ones
  const void* bias = nullptr;    ///< [columns]; null: zeros
  void* y = nullptr;
  void* mean = nullptr;  ///< [rows], written; null: RMSNorm
  void* rstd = nullptr;  ///< [rows], written
};

/// The gradients of that pass, from what it left behind.
struct NormBackward {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, columns = 0;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;  ///< [columns]; null: ones
  const void* mean = nullptr;    ///< [rows]; null: RMSNorm
  const void* rstd = nullptr;    ///< [rows]
  void* dx = nullptr;            ///< as x; null: not wanted
  void* dweight = nullptr;       ///< [columns], accumulation type; null: not wanted
  void* dbias = nullptr;         ///< [columns], accumulation type; null: not wanted
};

/// Numerics: statistics in two passes over blocks that fit the cache, then combined (Chan), so that a large mean costs
///           no digits. The same bits for every number of threads: rows are independent, and gradients of weight and
///           bias are summed over chunks of rows that depend on the shape only. The instruction set changes the order
///           of sums. Against ref:: in tests/nn/norm_kernel_test.cpp.
/// Cost:     forward reads x and writes y once; backward reads x and dy and writes dx once, and holds partial sums of
///           at most an eighth of x's number of values
/// Threads:  runs on libtorch's intra-op threads; safe to call from several threads
void norm_forward(const NormForward& args);
void norm_backward(const NormBackward& args);

/// The same in plain C++ and double, one value after the other: what the fast kernels are checked against.
namespace ref {
void norm_forward(const NormForward& args);
void norm_backward(const NormBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
