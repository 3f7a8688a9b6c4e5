#include "bellows/inspect/profile/machine_peaks.h"

#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <vector>

#include "bellows/core/grad_mode.h"
#include "bellows/core/stats.h"

namespace bellows::inspect {

namespace {

/// Calls operators in groups, because a single call is too short to be timed.
double measure_call() {
  constexpr int calls = 100;
  const at::Tensor one = at::ones({1}, at::kFloat);
  at::Tensor sum = at::ones({1}, at::kFloat);
  const auto group = [&] {
    for (int i = 0; i < calls; ++i) at::add_out(sum, one, one);
  };
  return median_call_seconds(group) / calls;
}

/// Processors without bf16 arithmetic can be so slow that only a small matmul is measured.
double measure_bf16_flops(double fp32_flops) {
  const double small = measure_matmul_flops(at::kBFloat16, 128);
  return small < 0.1 * fp32_flops ? small : measure_matmul_flops(at::kBFloat16);
}

}  // namespace

double MachinePeaks::flops(c10::ScalarType dtype) const {
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  if (half && bf16_flops > 0) return bf16_flops;
  return dtype == at::kDouble ? fp32_flops / 2 : fp32_flops;
}

double median_call_seconds(const std::function<void()>& call, int64_t repeats, int64_t warm_up) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(repeats));
  for (int64_t i = 0; i < warm_up + repeats; ++i) {
    const auto start = Clock::now();
    call();
    if (i >= warm_up) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return median(seconds);
}

double measure_matmul_flops(c10::ScalarType dtype, int64_t size) {
  const no_grad guard;
  const at::Tensor a = at::ones({size, size}, dtype);
  const at::Tensor b = at::ones({size, size}, dtype);
  const auto length = static_cast<double>(size);
  return 2 * length * length * length / median_call_seconds([&] { at::mm(a, b); });
}

double measure_memory_bandwidth() {
  constexpr int64_t count = 1 << 25;
  const no_grad guard;
  const at::Tensor a = at::ones({count}, at::kFloat);
  const at::Tensor b = at::ones({count}, at::kFloat);
  at::Tensor sum = at::ones({count}, at::kFloat);
  return 3.0 * count * sizeof(float) / median_call_seconds([&] { at::add_out(sum, a, b); });
}

MachinePeaks measure_peaks() {
  const no_grad guard;
  MachinePeaks peaks;
  peaks.fp32_flops = measure_matmul_flops(at::kFloat);
  peaks.bf16_flops = measure_bf16_flops(peaks.fp32_flops);
  peaks.bytes_per_second = measure_memory_bandwidth();
  peaks.call_s = measure_call();
  return peaks;
}

}  // namespace bellows::inspect
