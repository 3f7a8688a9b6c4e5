// fp16 matmuls and convolutions on the CPU, against libtorch's own kernels in fp16 and in fp32.
#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bellows/tap/half_operators.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

using Tensors = std::vector<at::Tensor>;

/// One operator on operands of any dtype.
struct Work {
  std::string name;
  double flops = 0;
  Tensors operands;  ///< fp32
  std::function<at::Tensor(const Tensors&)> run;
};

Work matmul(int64_t n) {
  return {"matmul " + std::to_string(n) + "^3",
          2. * n * n * n,
          {torch::randn({n, n}), torch::randn({n, n})},
          [](const Tensors& t) { return t[0].mm(t[1]); }};
}

Work convolution(int64_t channels, int64_t size, bool backward) {
  const int64_t images = 8;
  const std::array<bool, 3> mask{true, true, false};
  return {(backward ? "convolution backward, " : "convolution, ") + std::to_string(channels) + " channels, " +
              std::to_string(size) + "x" + std::to_string(size),
          (backward ? 2. : 1.) * 2 * images * channels * channels * 9 * size * size,
          {torch::randn({images, channels, size, size}), torch::randn({channels, channels, 3, 3}),
           torch::randn({images, channels, size, size})},
          [=](const Tensors& t) {
            if (!backward) return at::conv2d(t[0], t[1], {}, 1, 1);
            return std::get<0>(at::convolution_backward(t[2], t[0], t[1], at::OptionalIntArrayRef(), {1, 1}, {1, 1},
                                                        {1, 1}, false, {0, 0}, 1, mask));
          }};
}

Row measure(const Work& work, const Options& options) {
  const c10::NoGradGuard no_grad;
  Tensors half;
  for (const at::Tensor& operand : work.operands) half.push_back(operand.to(at::kHalf));
  const auto side = [&](const std::string& name, const Tensors& operands, bool ours) {
    return Contestant{name, [&work, operands, ours](int64_t n) {
                        const tap::FastHalfGuard guard(ours);
                        return seconds_of([&] {
                          for (int64_t i = 0; i < n; ++i) work.run(operands);
                        });
                      }};
  };
  const at::Tensor expected = work.run(work.operands);
  const at::Tensor made = [&] {
    const tap::FastHalfGuard guard;
    return work.run(half).to(at::kFloat);
  }();
  const bool equal = ((made - expected).norm() / expected.norm()).item<double>() < 2e-3;
  const Comparison comparison = compare(
      {side("ours", half, true), side("libtorch fp16", half, false), side("libtorch fp32", work.operands, false)},
      {.window_s = options.quick ? 0.05 : 0.3,
       .windows = options.quick ? 5 : 11,
       .budget_s = options.quick ? 8. : 60.});
  Row row = time_row(work.name, "time per call", "ms", comparison, equal);
  char note[160];
  std::snprintf(note, sizeof note, "ours %.1f GFLOP/s; libtorch's kernels have %s fp16 matmuls",
                work.flops / comparison.ours().seconds() / 1e9, tap::half_features().onednn ? "fast" : "slow");
  row.note = note;
  return row;
}

int run(const Options& options) {
  Report report("half", options);
  const std::vector<Work> all = {matmul(256), matmul(1024), convolution(64, 32, false), convolution(256, 14, false),
                                 convolution(64, 32, true)};
  for (const Work& work : all) {
    if (report.has_time_for(work.name)) report.add(measure(work, options));
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times fp16 matmuls and convolutions on the CPU under tap::FastHalfGuard, and compares them with\n"
      "libtorch's kernels in fp16 and fp32. ONEDNN_MAX_CPU_ISA=AVX512_CORE shows a processor without fp16.",
      run);
}
