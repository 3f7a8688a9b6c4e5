#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "bench/support/bench.h"

namespace bellows::bench {

double copy_bytes_per_s(size_t bytes) {
  // Every thread copies a stretch of its own, large enough that the C library's memcpy does not read the target first.
  const auto threads = static_cast<size_t>(at::get_num_threads());
  const size_t stretch = bytes / threads;
  const auto from = std::make_unique<char[]>(bytes), to = std::make_unique<char[]>(bytes);
  double best = 0;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::jthread> workers;
    for (size_t i = 0; i < threads; ++i) {
      workers.emplace_back([&, i] { std::memcpy(to.get() + i * stretch, from.get() + i * stretch, stretch); });
    }
    workers.clear();  // waits for all
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * static_cast<double>(stretch * threads) / seconds);
  }
  return best;
}

double gemm_flops_per_s(c10::ScalarType dtype) {
  constexpr int64_t n = 1024;  // short enough that some tries are not interrupted
  const at::Tensor a = at::ones({n, n}, dtype), b = at::ones({n, n}, dtype);
  double best = 0;
  for (int attempt = 0; attempt < 64; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor c = at::mm(a, b);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * n * n * n / seconds);
  }
  return best;
}

}  // namespace bellows::bench
