#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

namespace bellows::kernels {

/// A right-hand matrix that several matmuls read, such as the recurrent weights of an LSTM in all time steps. Packing it
/// once makes the matmuls faster, because they then read it in order. Types: float, double, BFloat16 and Half. The
/// packed matrix has the accumulation type, which is double if `dtype` is double, else float.
struct MatrixToPack {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t inner = 0, columns = 0;
  int64_t row = 0, column = 1;  ///< strides in elements
  const void* from = nullptr;   ///< [inner, columns]
  void* to = nullptr;           ///< packed_bytes(), 64-byte aligned
};

/// Arguments of packed_matmul(): result = left · right + bias + added.
struct PackedMatmul {
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of all matrices except the packed one
  int64_t rows = 0, inner = 0, columns = 0;
  int64_t left_row = 0, left_column = 1;  ///< strides in elements
  const void* left = nullptr;             ///< [rows, inner]
  const void* packed = nullptr;           ///< from pack_matrix()
  const void* bias = nullptr;             ///< [columns]; null if there is none
  const void* added = nullptr;            ///< [rows, columns], row-major; null if there is none; may be the result
  void* result = nullptr;                 ///< [rows, columns], row-major; may overlap only `added`
  void* scratch = nullptr;                ///< packed_matmul_scratch_bytes()
};

size_t packed_bytes(c10::ScalarType dtype, int64_t inner, int64_t columns);
size_t packed_matmul_scratch_bytes(c10::ScalarType dtype, int64_t rows, int64_t inner);

/// Copies a matrix into panels of 32 floats or 16 doubles per row. Missing columns of the last panel are 0.
/// Cost:    reads the matrix once, and writes packed_bytes()
/// Threads: thread-safe; uses several threads as described in parallel.h if the matrix is large
void pack_matrix(const MatrixToPack& args);

/// Numerics: each element is the sum of its products in order, with fused multiply-add, plus the bias, plus `added`.
///           BFloat16 and Half are rounded once, at the end. Results are bit-identical for any number of threads, and
///           those of a row do not depend on the other rows or on their number.
///           tests/kernels/packed_matmul_test.cpp compares the results with the reference implementation
/// Cost:     reads the packed matrix from memory once for about 512 KB of the left matrix, and from the cache once for
///           every 12 rows (6 without AVX-512). Reads and copies the left matrix once
/// Threads:  thread-safe; uses several threads as described in parallel.h if the matmul has at least 2 million operations
void packed_matmul(const PackedMatmul& args);

/// Reference implementations in plain C++, with the same packed matrix. They compute sums in double.
namespace ref {
void pack_matrix(const MatrixToPack& args);
void packed_matmul(const PackedMatmul& args);
}  // namespace ref

}  // namespace bellows::kernels
