#include "bellows/tap/sparse_operators.h"

#include <ATen/ops/addmm_native.h>
#include <ATen/ops/mm_native.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <atomic>
#include <vector>

#include "bellows/tap/kernel_replacement.h"

namespace bellows::tap {

namespace {

std::atomic<SparseOperators*> sparse_replacement = nullptr;

std::optional<at::Tensor> replaced(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                                   const at::Scalar& beta, const at::Scalar& alpha) {
  auto* const ours = sparse_replacement.load();
  return ours ? ours->addmm(self, a, b, beta, alpha) : std::nullopt;
}

at::Tensor addmm_coo(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                     const at::Scalar& alpha) {
  if (auto made = replaced(self, a, b, beta, alpha)) return *made;
  return at::native::addmm_sparse_dense_cpu(self, a, b, beta, alpha);
}

at::Tensor addmm_compressed(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                            const at::Scalar& alpha) {
  if (auto made = replaced(self, a, b, beta, alpha)) return *made;
  return at::native::addmm_sparse_compressed_dense(self, a, b, beta, alpha);
}

/// libtorch converts CSC matrices to CSR before it calls addmm, which takes much longer than the matmul.
at::Tensor mm_compressed(const at::Tensor& a, const at::Tensor& b) {
  if (sparse_replacement.load() && b.layout() == at::kStrided) {
    if (auto made = replaced(at::zeros({}, b.options()), a, b, 0, 1)) return *made;
  }
  return at::native::_sparse_csr_mm(a, b);
}

std::vector<torch::Library>* install_sparse() {
  const SilentReplacement silent;
  auto* libraries = new std::vector<torch::Library>;
  libraries->reserve(2);
  libraries->emplace_back(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCPU, __FILE__, __LINE__);
  libraries->back().impl("addmm", addmm_coo);
  libraries->emplace_back(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCsrCPU, __FILE__, __LINE__);
  libraries->back().impl("addmm", addmm_compressed);
  libraries->back().impl("mm", mm_compressed);
  return libraries;
}

}  // namespace

void replace_sparse_operators(SparseOperators* operators) {
  [[gnu::used]] static const auto* const installed = install_sparse();  // never undone
  sparse_replacement = operators;
}

}  // namespace bellows::tap
