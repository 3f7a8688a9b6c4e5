// Matmuls of sparse and dense matrices on the CPU, against libtorch's own kernels.
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "bellows/nn/fast_sparse.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

/// A random graph, whose adjacency matrix is multiplied by the features of its nodes.
struct GraphSize {
  int64_t nodes, degree, features;
};

Row measure(const std::string& name, const GraphSize& size, const at::Tensor& sparse, const Options& options) {
  const c10::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({size.nodes, size.features});
  const auto side = [&](const char* who, bool ours) {
    return Contestant{who, [&sparse, x, ours](int64_t n) {
                        const nn::FastSparseGuard guard(ours);
                        return seconds_of([&] {
                          for (int64_t i = 0; i < n; ++i) at::mm(sparse, x);
                        });
                      }};
  };
  const at::Tensor expected = at::mm(sparse, x);
  const at::Tensor made = [&] {
    const nn::FastSparseGuard guard;
    return at::mm(sparse, x);
  }();
  const bool equal = torch::allclose(made, expected, 1e-4, 1e-4);
  const Comparison comparison =
      compare({side("ours", true), side("libtorch", false)}, {.window_s = options.quick ? 0.05 : 0.3,
                                                              .windows = options.quick ? 5 : 11,
                                                              .budget_s = options.quick ? 6. : 60.});
  return time_row(name + ", " + std::to_string(size.nodes) + " nodes, degree " + std::to_string(size.degree) + ", " +
                      std::to_string(size.features) + " features",
                  "time per call", "ms", comparison, equal);
}

int run(const Options& options) {
  Report report("sparse", options);
  for (const GraphSize& size : {GraphSize{2708, 5, 16}, GraphSize{20000, 10, 64}, GraphSize{20000, 10, 256}}) {
    const at::Tensor ends = torch::randint(size.nodes, {2, size.nodes * size.degree});
    const at::Tensor coo =
        at::sparse_coo_tensor(ends, torch::rand({size.nodes * size.degree}), {size.nodes, size.nodes}).coalesce();
    const at::Tensor csr = coo.to_sparse_csr();
    if (!report.has_time_for("COO")) break;
    report.add(measure("COO", size, coo, options));
    report.add(measure("transposed COO", size, coo.t(), options));
    report.add(measure("CSR", size, csr, options));
    report.add(measure("CSC", size, csr.t(), options));
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times matmuls of sparse and dense fp32 matrices on the CPU, with the sizes of graph networks, and\n"
      "compares the kernel of Bellows with libtorch's.",
      run);
}
