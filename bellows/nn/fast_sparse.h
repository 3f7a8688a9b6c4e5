#pragma once

#include <cstdint>

namespace bellows::nn {

/// Multiplies sparse and dense matrices on the CPU, usually faster than libtorch (bench/sparse). Small CSR matrices can
/// be slower.
///
/// While an enabled guard exists on this thread, matmuls of a sparse and a dense matrix (at::mm, at::addmm, _sparse_mm)
/// use the kernel of kernels/sparse_matmul.h. Their gradients use it if backward runs on this thread under the guard.
/// Sparse matrices can be in COO (coalesced or not), CSR or CSC layout, with fp32, fp64 or bf16 values. The pattern of a
/// matrix may change from call to call, because nothing is stored between calls. All other cases run libtorch's kernels:
/// sparse results, blocked layouts, other dtypes, and arguments for which libtorch reports an error.
/// Numerics: sums are computed in the order of the entries, with other roundings than in libtorch: fp32 rtol 1e-5
/// Cost:     one pass over the entries to find the rows, which is small compared with the matmul. The first guard
///           permanently replaces libtorch's kernels (tap/sparse_operators.h)
/// Threads:  affects the current thread only. Results do not depend on the number of threads
class FastSparseGuard {
 public:
  explicit FastSparseGuard(bool enabled = true);
  ~FastSparseGuard();
  FastSparseGuard(const FastSparseGuard&) = delete;
  FastSparseGuard& operator=(const FastSparseGuard&) = delete;

  /// Returns how many matmuls the kernel of Bellows has computed in this process.
  static int64_t performed();

 private:
  bool enabled_;
};

}  // namespace bellows::nn
