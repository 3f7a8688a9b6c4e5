#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

/// A sparse matrix in compressed rows (CSR), times a dense matrix.
struct SparseMatmul {
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of all values: Float, Double or BFloat16
  int64_t rows = 0, columns = 0;                   ///< of the result
  const int64_t* offsets = nullptr;  ///< rows + 1 numbers: row i has the entries offsets[i] to offsets[i + 1]
  const int64_t* indices = nullptr;  ///< of each entry: the row of `dense` by which it is multiplied
  const void* values = nullptr;      ///< of each entry
  /// If not null, entry k is at indices[order[k]] and values[order[k]] instead of indices[k] and values[k].
  const int64_t* order = nullptr;
  const void* dense = nullptr;  ///< elements of a row are adjacent
  int64_t dense_stride = 0;     ///< distance between two rows, in elements
  void* out = nullptr;          ///< rows × columns, row-major; overwritten
};

/// Computes a sparse-dense matmul.
/// Numerics: the sum of each element is computed in the order of the entries, with fused multiply-add where the processor
///           has it; for BFloat16 in float, rounded once. Results do not depend on the number of threads
/// Cost:     reads a row of `dense` for each entry, and writes the result once
/// Threads:  uses libtorch's intra-op threads; rows are distributed so that threads have about equally many entries
/// Throws:   c10::ValueError if the dtype is not supported
void sparse_matmul(const SparseMatmul& args);

/// Reference implementation in plain C++, without threads.
namespace ref {
void sparse_matmul(const SparseMatmul& args);
}  // namespace ref

}  // namespace bellows::kernels
