#include "bellows/kernels/parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace bellows::kernels {

TEST(Parallel, EveryChunkOnce) {
  for (const int64_t count : {0, 1, 2, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
    parallel_chunks(count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
    for (const auto& c : calls) EXPECT_EQ(c, 1);
  }
}

TEST(Parallel, RunsOnLibtorchsThreads) {
  const size_t expected = at::get_num_threads() > 1 ? 2 : 1;
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<size_t> arrived = 0;
  // Each of two chunks waits a while for the other to begin: one thread alone does both.
  parallel_chunks(2, [&](int64_t) {
    ++arrived;
    for (int64_t spins = 0; arrived < expected && spins < 2'000'000; ++spins) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), expected);
}

TEST(Parallel, OneThreadMeansTheCaller) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto caller = std::this_thread::get_id();
  parallel_chunks(8, [&](int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
  at::set_num_threads(before);
}

TEST(Parallel, WithinItselfItIsSerial) {
  std::atomic<int> calls = 0;
  parallel_chunks(4, [&](int64_t) { parallel_chunks(3, [&](int64_t) { ++calls; }); });
  EXPECT_EQ(calls, 12);
}

TEST(Parallel, RangesAreEveryPlaceOnceAndNoneIsShort) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  for (const int64_t count : {0, 1, 7, 63, 64, 100, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
    std::atomic<int> ranges = 0;
    parallel_ranges(count, 32, [&](int64_t begin, int64_t end) {
      ++ranges;
      EXPECT_TRUE(end - begin >= 32 || count < 64) << begin << " to " << end;
      for (int64_t i = begin; i < end; ++i) ++calls[static_cast<size_t>(i)];
    });
    for (const auto& c : calls) EXPECT_EQ(c, 1) << count;
    EXPECT_EQ(ranges, count == 0 ? 0 : count < 64 ? 1 : count < 96 ? 2 : 3) << count;
  }
  at::set_num_threads(before);
}

TEST(Parallel, PassesAnErrorOn) {
  EXPECT_THROW(parallel_chunks(100,
                               [](int64_t i) {
                                 if (i == 17) throw std::runtime_error("17");
                               }),
               std::runtime_error);
}

}  // namespace bellows::kernels
