#include "bench/support/streams.h"

#include "bellows/core/error.h"

// Compiled once for each kind of processor below; the best is chosen when the program runs.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/support/streams.cpp"
// clang-format off: in this order
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/cache_control.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace bellows::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t line = 16;              // floats of a cache line
constexpr size_t prefetch_ahead = 1024;  // floats; the processor's own prefetchers stop at the end of a page

/// Reads, updates in place, and writes so many arrays. Params: Around – writes go around the caches
template <size_t Reads, size_t Updates, size_t Writes, bool Around, bool Prefetch>
HWY_NOINLINE float stream(float* const* arrays, size_t begin, size_t end) {
  const hn::CappedTag<float, line> d;
  auto sum = hn::Zero(d);
  for (size_t i = begin; i < end; i += line) {
    if constexpr (Prefetch) {
      for (size_t k = 0; k < Reads + Updates; ++k) hwy::Prefetch(arrays[k] + i + prefetch_ahead);
    }
    for (size_t j = i; j < i + line; j += hn::Lanes(d)) {
      auto read = hn::Zero(d);
      for (size_t k = 0; k < Reads; ++k) read = hn::Add(read, hn::Load(d, arrays[k] + j));
      if constexpr (Updates + Writes == 0) sum = hn::Add(sum, read);
      for (size_t k = Reads; k < Reads + Updates; ++k) {
        hn::Store(hn::MulAdd(read, hn::Set(d, 0.25F), hn::Load(d, arrays[k] + j)), d, arrays[k] + j);
      }
      for (size_t k = Reads + Updates; k < Reads + Updates + Writes; ++k) {
        if constexpr (Around) {
          hn::Stream(read, d, arrays[k] + j);
        } else {
          hn::Store(read, d, arrays[k] + j);
        }
      }
    }
  }
  if constexpr (Around) hwy::FlushStream();
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

float run(size_t kernel, float* const* arrays, size_t begin, size_t end) {
  using Pass = float (*)(float* const*, size_t, size_t);
  constexpr Pass passes[] = {
      stream<1, 0, 0, false, false>, stream<4, 0, 0, false, false>, stream<4, 0, 0, false, true>,
      stream<1, 0, 1, false, false>, stream<1, 0, 1, true, false>,  stream<1, 0, 1, true, true>,
      stream<2, 0, 1, false, false>, stream<2, 0, 1, true, false>,  stream<0, 1, 0, false, false>,
      stream<0, 4, 0, false, false>, stream<1, 1, 0, false, true>,  stream<1, 2, 0, false, false>,
      stream<1, 2, 0, false, true>,  stream<1, 3, 0, false, false>, stream<1, 3, 0, false, true>};
  return passes[kernel](arrays, begin, end);
}

}  // namespace bellows::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bellows::bench {

HWY_EXPORT(run);

namespace {

// In the order of `passes` above.
constexpr StreamKernel kernels[] = {{"read", 1, 0, 0},
                                    {"read, 4 arrays", 4, 0, 0},
                                    {"read, 4 arrays, prefetched", 4, 0, 0},
                                    {"copy", 1, 0, 1},
                                    {"copy around the caches", 1, 0, 1},
                                    {"copy around the caches, prefetched", 1, 0, 1},
                                    {"triad", 2, 0, 1},
                                    {"triad around the caches", 2, 0, 1},
                                    {"update", 0, 1, 0},
                                    {"update of 4 arrays", 0, 4, 0},
                                    {"update from another array, prefetched", 1, 1, 0},
                                    {"update of 2 arrays from another", 1, 2, 0},
                                    {"update of 2 arrays from another, prefetched", 1, 2, 0},
                                    {"update of 3 arrays from another", 1, 3, 0},
                                    {"update of 3 arrays from another, prefetched", 1, 3, 0}};

}  // namespace

std::span<const StreamKernel> stream_kernels() {
  return kernels;
}

float run_stream(const StreamKernel& kernel, float* const* arrays, size_t begin, size_t end) {
  return HWY_DYNAMIC_DISPATCH(run)(static_cast<size_t>(&kernel - kernels), arrays, begin, end);
}

}  // namespace bellows::bench
#endif
