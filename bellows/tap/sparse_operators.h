#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace bellows::tap {

/// Replaces libtorch's CPU kernels of matmuls of a sparse and a dense matrix.
/// Threads: called on any thread, also concurrently
class SparseOperators {
 public:
  virtual ~SparseOperators() = default;
  /// Returns beta · self + alpha · sparse · dense, or nothing. In the second case, libtorch's kernel runs. The function
  /// is called below autograd, with the arguments of at::addmm. No argument has been checked.
  /// Params: sparse – in COO, CSR, CSC or another sparse layout
  virtual std::optional<at::Tensor> addmm(const at::Tensor& self, const at::Tensor& sparse, const at::Tensor& dense,
                                          const at::Scalar& beta, const at::Scalar& alpha) = 0;
};

/// From now on, calls `operators` for at::addmm and at::mm of sparse CPU matrices, on all threads of the process. Null ends the
/// replacement. Operators that libtorch composes of them, such as _sparse_mm, and their gradients, are
/// included. In-place and `out` variants are not.
/// Changes: the first call permanently replaces libtorch's kernels of these operators for sparse CPU tensors in the whole
///          process. Without `operators`, they behave like libtorch's kernels
/// Params:  operators – must exist until the process ends, because a thread may still call it
/// Cost:    one atomic load per call
/// Threads: thread-safe
void replace_sparse_operators(SparseOperators* operators);

}  // namespace bellows::tap
