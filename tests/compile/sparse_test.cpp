// Compiled functions with matmuls of sparse and dense matrices.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "bellows/compile.h"
#include "bellows/nn/fast_sparse.h"

namespace bellows::compile_detail::testing {
namespace {

/// Returns a graph of 60 nodes as an adjacency matrix.
at::Tensor random_graph(int64_t edges) {
  const at::Tensor ends = torch::randint(60, {2, edges});
  return at::sparse_coo_tensor(ends, torch::ones({edges}), {60, 60}).coalesce();
}

/// One step of a graph network with two layers.
std::vector<at::Tensor> graph_step(const at::Tensor& graph, const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor hidden = at::mm(graph, x.mm(weight)).relu();
  const at::Tensor out = at::mm(graph, hidden.mm(weight)).tanh();
  auto gradients = torch::autograd::grad({out.square().sum()}, {weight});
  return {out.detach(), gradients[0]};
}

TEST(CompiledSparse, PatternsMayChangeBetweenCalls) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({60, 16}), weight = torch::randn({16, 16}).mul_(0.2).requires_grad_();
  const auto compiled = compile(graph_step, {.always = true});
  for (int call = 0; call < 8; ++call) {
    // The first calls have the same number of edges, so that calls follow a recording.
    const at::Tensor coo = random_graph(call < 4 ? 200 : 40 * call), graph = call % 2 ? coo : coo.to_sparse_csr();
    const auto expected = graph_step(graph, x, weight);
    const int64_t before = nn::FastSparseGuard::performed();
    const auto made = compiled(graph, x, weight);
    sync();
    EXPECT_GE(nn::FastSparseGuard::performed() - before, 3) << call;  // two forward, at least one backward
    for (size_t i = 0; i < made.size(); ++i) EXPECT_TRUE(torch::allclose(made[i], expected[i], 1e-4, 1e-4)) << call;
  }
}

TEST(CompiledSparse, ExactIsBitIdenticalToEagerCode) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({60, 16}), weight = torch::randn({16, 16}).mul_(0.2).requires_grad_();
  const auto compiled = compile(graph_step, {.exact = true, .always = true});
  const int64_t before = nn::FastSparseGuard::performed();
  for (int call = 0; call < 4; ++call) {
    const at::Tensor graph = random_graph(200);
    const auto expected = graph_step(graph, x, weight), made = compiled(graph, x, weight);
    for (size_t i = 0; i < made.size(); ++i) EXPECT_TRUE(made[i].equal(expected[i])) << call;
  }
  EXPECT_EQ(nn::FastSparseGuard::performed(), before);
}

}  // namespace
}  // namespace bellows::compile_detail::testing
