#include <ATen/Parallel.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/kernels/parallel.h"
#include "bench/support/bench.h"
#include "bench/support/streams.h"

namespace bellows::bench {

namespace {

constexpr size_t line = 64, line_floats = line / sizeof(float), large_page = size_t{2} << 20;

/// Memory in large pages where the system has them: they are faster than small ones.
class StreamBuffer {
 public:
  explicit StreamBuffer(size_t bytes)
      : bytes_((bytes + large_page - 1) / large_page * large_page),
        data_(static_cast<float*>(std::aligned_alloc(large_page, bytes_))) {
    TORCH_CHECK(data_ != nullptr, "The memory bandwidth cannot be measured, because ", bytes_,
                " bytes could not be allocated.");
    ::madvise(data_.get(), bytes_, MADV_HUGEPAGE);
    const auto floats = static_cast<int64_t>(bytes_ / sizeof(float));
    kernels::parallel_ranges(
        floats, 1 << 16, [&](int64_t begin, int64_t end) { std::fill(data_.get() + begin, data_.get() + end, 0.0F); });
  }

  size_t bytes() const { return bytes_; }
  /// Of one pass of all threads over the first bytes of the buffer.
  double bytes_per_s(const StreamKernel& kernel, size_t bytes) const {
    // An odd number of lines: arrays whose distance is a power of two would share the same places in the caches.
    const size_t lines = (bytes / line / kernel.arrays() - 1) | 1, length = lines * line_floats;
    std::vector<float*> arrays;
    for (size_t k = 0; k < kernel.arrays(); ++k) arrays.push_back(data_.get() + k * length);
    const auto threads = static_cast<size_t>(at::get_num_threads());
    const auto start_of = [&](int64_t part) { return lines * static_cast<size_t>(part) / threads * line_floats; };
    std::atomic<float> sink = 0;
    const double seconds = seconds_of([&] {
      kernels::parallel_ranges(static_cast<int64_t>(threads), 1, [&](int64_t first, int64_t last) {
        sink = run_stream(kernel, arrays.data(), start_of(first), start_of(last));
      });
    });
    return kernel.bytes_moved(length) / seconds;
  }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  size_t bytes_;
  std::unique_ptr<float[], Free> data_;
};

/// The best that each loop did so far.
class StreamRates {
 public:
  /// First all loops, several times; later the fastest of them, once.
  double measure(const StreamBuffer& buffer, size_t bytes) {
    const bool first = best_.empty();
    for (const StreamKernel& kernel : stream_kernels()) {
      if (first) best_.emplace_back(0, &kernel);
    }
    const int attempts = first ? 5 : 1;
    const size_t count = first ? best_.size() : 3;
    for (int attempt = 0; attempt < attempts; ++attempt) {
      for (size_t i = 0; i < count; ++i) {
        auto& [rate, kernel] = best_[i];
        rate = std::max(rate, buffer.bytes_per_s(*kernel, bytes));
      }
    }
    std::sort(best_.begin(), best_.end(), std::greater<>());
    return best_.front().first;
  }

 private:
  std::vector<std::pair<double, const StreamKernel*>> best_;
};

}  // namespace

double memory_bytes_per_s(size_t working_set) {
  // The best so far. A later call can only raise it: another program may have used the memory before.
  static std::map<size_t, StreamRates> rates;
  static std::unique_ptr<StreamBuffer> buffer;
  if (!buffer || buffer->bytes() < working_set) buffer = std::make_unique<StreamBuffer>(working_set);
  return rates[working_set].measure(*buffer, working_set);
}

double memory_bytes_per_s() {
  // Far above the last cache of the processors that this runs on, whatever is shared there.
  const double larger = memory_bytes_per_s(size_t{512} << 20);
  return std::max(larger, memory_bytes_per_s(size_t{256} << 20));
}

double gemm_flops_per_s(c10::ScalarType dtype) {
  static std::map<c10::ScalarType, double> best;
  const int attempts = best.contains(dtype) ? 4 : 24;
  double& rate = best[dtype];
  const auto measure = [&](double flops, const std::function<at::Tensor()>& product) {
    for (int attempt = 0; attempt < attempts; ++attempt) {
      rate = std::max(rate, flops / seconds_of([&] { product(); }));
    }
  };
  // Short enough that some tries are not interrupted.
  for (const int64_t n : {512, 1024}) {
    const at::Tensor a = at::ones({n, n}, dtype), b = at::ones({n, n}, dtype);
    const auto flops = 2.0 * static_cast<double>(n * n * n);
    measure(flops, [&] { return at::mm(a, b); });
    measure(flops, [&] { return at::mm(a, b.t()); });
  }
  // Convolutions are another engine's: oneDNN's, with weights in the order it likes best.
  constexpr int64_t images = 8, channels = 128, side = 30, out = side - 2;
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const at::Tensor x = at::ones({images, channels, side, side}, dtype).contiguous(format);
    const at::Tensor weight = at::ones({channels, channels, 3, 3}, dtype).contiguous(format);
    measure(2.0 * images * out * out * channels * channels * 9, [&] { return at::conv2d(x, weight); });
  }
  return rate;
}

}  // namespace bellows::bench
