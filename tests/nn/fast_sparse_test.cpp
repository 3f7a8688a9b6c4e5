#include "bellows/nn/fast_sparse.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>
#include <vector>

#include "bellows/kernels/sparse_matmul.h"

namespace bellows::nn {
namespace {

/// A random matrix in which about one of `rarity` elements is not 0.
at::Tensor random_pattern(int64_t rows, int64_t columns, int64_t rarity, at::ScalarType dtype = at::kFloat) {
  const at::Tensor kept = torch::randint(rarity, {rows, columns}) == 0;
  return (torch::randn({rows, columns}) * kept).to(dtype);
}

/// The matrix in several sparse layouts, and its transpose.
std::vector<std::pair<const char*, at::Tensor>> layouts_of(const at::Tensor& matrix) {
  const at::Tensor coo = matrix.to_sparse();
  const at::Tensor twice =
      at::sparse_coo_tensor(at::cat({coo.indices(), coo.indices().flip(1)}, 1),
                            at::cat({coo.values() * 0.5, coo.values().flip(0) * 0.5}), coo.sizes());
  return {{"COO", coo},
          {"uncoalesced COO", twice},
          {"transposed COO", matrix.t().contiguous().to_sparse().t()},
          {"CSR", matrix.to_sparse_csr()},
          {"CSC", matrix.to_sparse_csc()}};
}

double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-13 : dtype == at::kFloat ? 1e-5 : 8e-3;
}

TEST(FastSparse, MatmulsEqualDenseOnesInAllLayoutsAndTypes) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t columns : {1, 7, 16, 65, 130}) {
      const at::Tensor matrix = random_pattern(83, 41, 6, dtype), dense = torch::randn({41, columns}).to(dtype);
      const at::Tensor expected = matrix.to(at::kDouble).mm(dense.to(at::kDouble));
      for (const auto& [name, sparse] : layouts_of(matrix)) {
        const FastSparseGuard guard;
        const int64_t before = FastSparseGuard::performed();
        const at::Tensor made = at::mm(sparse, dense), transposed = at::mm(sparse, dense.t().contiguous().t());
        EXPECT_EQ(FastSparseGuard::performed(), before + 2) << name;
        EXPECT_EQ(made.scalar_type(), dtype);
        EXPECT_LE((made.to(at::kDouble) - expected).abs().max().item<double>(), 8 * tolerance(dtype))
            << name << columns;
        EXPECT_TRUE(made.equal(transposed)) << name;
      }
    }
  }
}

TEST(FastSparse, AddmmScalesAndAdds) {
  torch::manual_seed(2);
  const at::Tensor matrix = random_pattern(30, 20, 4), dense = torch::randn({20, 9}), added = torch::randn({30, 9});
  const at::Tensor expected = at::addmm(added, matrix, dense, 0.5, 2);
  const FastSparseGuard guard;
  for (const auto& [name, sparse] : layouts_of(matrix)) {
    EXPECT_TRUE(torch::allclose(at::addmm(added, sparse, dense, 0.5, 2), expected, 1e-5, 1e-5)) << name;
  }
}

TEST(FastSparse, GradientsEqualThoseOfLibtorch) {
  torch::manual_seed(3);
  const at::Tensor matrix = random_pattern(50, 40, 5), upstream = torch::randn({50, 8});
  const auto gradients = [&](bool fast, bool csr) {
    const FastSparseGuard guard(fast);
    const at::Tensor sparse = (csr ? matrix.to_sparse_csr() : matrix.to_sparse()).requires_grad_(!csr);
    torch::manual_seed(4);
    const at::Tensor dense = torch::randn({40, 8}).requires_grad_();
    at::mm(sparse, dense).backward(upstream);
    return std::pair(dense.grad(), csr ? at::Tensor() : sparse.grad().to_dense());
  };
  for (const bool csr : {false, true}) {
    const auto theirs = gradients(false, csr), ours = gradients(true, csr);
    EXPECT_TRUE(torch::allclose(ours.first, theirs.first, 1e-5, 1e-5)) << csr;
    EXPECT_TRUE(csr || torch::allclose(ours.second, theirs.second, 1e-5, 1e-5));
  }
}

TEST(FastSparse, EmptyAndExtremeShapes) {
  const FastSparseGuard guard;
  const at::Tensor none = torch::zeros({4, 3}).to_sparse(), one = torch::ones({1, 1}).to_sparse();
  EXPECT_TRUE(at::mm(none, torch::ones({3, 5})).equal(torch::zeros({4, 5})));
  EXPECT_TRUE(at::mm(one, torch::full({1, 1}, 3.)).equal(torch::full({1, 1}, 3.)));
  EXPECT_EQ(at::mm(none, torch::ones({3, 0})).sizes(), (std::vector<int64_t>{4, 0}));
  // One row has nearly all entries.
  at::Tensor matrix = torch::zeros({2000, 500});
  matrix[7].fill_(1);
  EXPECT_TRUE(at::mm(matrix.to_sparse_csr(), torch::ones({500, 64})).equal(matrix.mm(torch::ones({500, 64}))));
}

TEST(FastSparse, LeavesOtherCasesToLibtorch) {
  const at::Tensor sparse = torch::eye(4).to_sparse(), dense = torch::ones({4, 4});
  const int64_t before = FastSparseGuard::performed();
  at::mm(sparse, dense);
  {
    const FastSparseGuard guard;
    std::thread([&] { at::mm(sparse, dense); }).join();
    const FastSparseGuard off(false);
    EXPECT_THROW(at::mm(sparse, torch::ones({5, 4})), c10::Error);
    EXPECT_THROW(at::mm(sparse, dense.to(at::kDouble)), c10::Error);
    const at::Tensor outside =
        at::_sparse_coo_tensor_unsafe(torch::full({2, 1}, 9, at::kLong), torch::ones({1}), {4, 4});
    EXPECT_THROW(at::mm(outside, dense), c10::Error);
  }
  EXPECT_EQ(FastSparseGuard::performed(), before);
}

TEST(FastSparse, ResultsDoNotDependOnThreadsAndEqualTheReference) {
  torch::manual_seed(5);
  const at::Tensor csr = random_pattern(3000, 700, 20).to_sparse_csr(), dense = torch::randn({700, 75});
  const int threads = at::get_num_threads();
  const FastSparseGuard guard;
  at::set_num_threads(1);
  const at::Tensor one = at::mm(csr, dense);
  at::set_num_threads(2);
  const at::Tensor two = at::mm(csr, dense);
  at::set_num_threads(threads);
  EXPECT_TRUE(one.equal(two));
  at::Tensor plain = torch::empty_like(one);
  kernels::ref::sparse_matmul({.rows = 3000,
                               .columns = 75,
                               .offsets = csr.crow_indices().data_ptr<int64_t>(),
                               .indices = csr.col_indices().data_ptr<int64_t>(),
                               .values = csr.values().data_ptr(),
                               .dense = dense.data_ptr(),
                               .dense_stride = 75,
                               .out = plain.data_ptr()});
  EXPECT_TRUE(torch::allclose(one, plain, 1e-5, 1e-5));
  EXPECT_THROW(kernels::sparse_matmul({.dtype = at::kInt}), c10::ValueError);
  EXPECT_THROW(kernels::ref::sparse_matmul({.dtype = at::kInt}), c10::ValueError);
}

}  // namespace
}  // namespace bellows::nn
