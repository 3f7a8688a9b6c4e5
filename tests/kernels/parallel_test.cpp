#include "bellows/kernels/parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace bellows::kernels {

size_t expected_threads() {
  return std::min<size_t>(at::get_num_threads(), std::max(1U, std::thread::hardware_concurrency()));
}

/// On libtorch's threads (false), and on fair ones (true).
class Parallel : public testing::TestWithParam<bool> {
 protected:
  static void run(const std::function<void()>& test) { GetParam() ? with_fair_threads(test) : test(); }
};

INSTANTIATE_TEST_SUITE_P(Threads, Parallel, testing::Bool(),
                         [](const auto& test) { return test.param ? "fair" : "libtorch"; });

TEST_P(Parallel, EveryChunkOnce) {
  run([] {
    for (const int64_t count : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      parallel_chunks(count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      for (const auto& c : calls) EXPECT_EQ(c, 1);
    }
  });
}

TEST_P(Parallel, RunsOnSeveralThreads) {
  run([] {
    const size_t expected = std::min<size_t>(2, expected_threads());
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
  });
}

TEST_P(Parallel, OneThreadMeansTheCaller) {
  run([] {
    const int before = at::get_num_threads();
    at::set_num_threads(1);
    const auto caller = std::this_thread::get_id();
    parallel_chunks(8, [&](int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
    at::set_num_threads(before);
  });
}

TEST_P(Parallel, WithinItselfItIsSerial) {
  run([] {
    std::atomic<int> calls = 0;
    parallel_chunks(4, [&](int64_t) { parallel_chunks(3, [&](int64_t) { ++calls; }); });
    EXPECT_EQ(calls, 12);
  });
}

TEST_P(Parallel, RangesAreEveryPlaceOnceAndNoneIsShort) {
  run([] {
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
  });
}

TEST_P(Parallel, PassesAnErrorOn) {
  run([] {
    EXPECT_THROW(parallel_chunks(100,
                                 [](int64_t i) {
                                   if (i == 17) throw std::runtime_error("17");
                                 }),
                 std::runtime_error);
  });
}

TEST(FairThreads, LeaveTheFunctionOnItsThread) {
  const auto caller = std::this_thread::get_id();
  for (int i = 0; i < 50; ++i) with_fair_threads([&] { EXPECT_EQ(std::this_thread::get_id(), caller); });
  EXPECT_THROW(with_fair_threads([] { throw std::runtime_error("17"); }), std::runtime_error);
}

/// As if another process used the cores of all other threads.
TEST(FairThreads, AreNotWaitedForBeforeTheyStart) {
  std::atomic<bool> finished = false;
  std::atomic<size_t> busy = 0;
  std::thread other([&] {
    with_fair_threads([&] {
      parallel_chunks(64, [&](int64_t) {
        ++busy;
        while (!finished) std::this_thread::yield();
      });
    });
  });
  while (busy < expected_threads()) std::this_thread::yield();
  std::atomic<int> calls = 0;
  with_fair_threads([&] { parallel_chunks(100, [&](int64_t) { ++calls; }); });
  EXPECT_EQ(calls, 100);
  finished = true;
  other.join();
}

/// Their bodies may call operators of libtorch.
TEST(FairThreads, ParallelOperatorsRunOnLibtorchsThreads) {
  std::atomic<int> parallel = 0;
  with_fair_threads([&] { parallel_operators(2, [&](int64_t) { parallel += at::in_parallel_region(); }); });
  EXPECT_EQ(parallel, at::get_num_threads() > 1 ? 2 : 0);
}

}  // namespace bellows::kernels
