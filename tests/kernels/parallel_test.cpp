#include "bellows/kernels/parallel.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <tbb/info.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace bellows::kernels {

size_t expected_threads() {
  return std::min<size_t>(at::get_num_threads(), tbb::info::default_concurrency());
}

/// On libtorch's threads (false), and on those of oneTBB (true).
class Parallel : public testing::TestWithParam<bool> {
 protected:
  static void run(const std::function<void()>& test) { GetParam() ? with_work_stealing(test) : test(); }
};

INSTANTIATE_TEST_SUITE_P(Threads, Parallel, testing::Bool(),
                         [](const auto& test) { return test.param ? "stealing" : "libtorch"; });

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
      EXPECT_EQ(at::in_parallel_region(), !GetParam() && at::get_num_threads() > 1);
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

TEST(WorkStealing, LeaveTheFunctionOnItsThread) {
  const auto caller = std::this_thread::get_id();
  for (int i = 0; i < 50; ++i) with_work_stealing([&] { EXPECT_EQ(std::this_thread::get_id(), caller); });
  EXPECT_THROW(with_work_stealing([] { throw std::runtime_error("17"); }), std::runtime_error);
}

/// oneDNN asks for this number.
TEST(WorkStealing, HasTheNumberOfThreadsOfLibtorch) {
  const int before = at::get_num_threads();
  const auto threads = [] {
    int result = 0;
    with_work_stealing([&] { result = tbb::this_task_arena::max_concurrency(); });
    return result;
  };
  for (const int number : {before, 1, 3, before}) {
    at::set_num_threads(number);
    EXPECT_EQ(threads(), number);
  }
  parallel_operators(2, [&](int64_t) { EXPECT_EQ(threads(), 1); });
}

/// Subnormal numbers are flushed in all threads as in the calling one.
TEST(WorkStealing, FollowsTheFlushingOfSubnormals) {
  const bool before = at::globalContext().setFlushDenormal(true);
  ASSERT_TRUE(before);
  const auto half = [] {
    volatile float least = std::numeric_limits<float>::min();
    float result = 1;
    with_work_stealing([&] { result = least / 2; });
    return result;
  };
  EXPECT_EQ(half(), 0);
  at::globalContext().setFlushDenormal(false);
  EXPECT_GT(half(), 0);
}

/// As if another process used the cores of all other threads: another caller occupies them until the end.
TEST(WorkStealing, DoesNotWaitForThreadsThatHaveStartedNothing) {
  std::atomic<bool> finished = false;
  std::atomic<size_t> busy = 0;
  std::thread other([&] {
    with_work_stealing([&] {
      parallel_chunks(64, [&](int64_t) {
        ++busy;
        while (!finished) std::this_thread::yield();
      });
    });
  });
  for (int64_t spins = 0; busy < expected_threads() && spins < 2'000'000; ++spins) std::this_thread::yield();
  std::atomic<int> calls = 0;
  with_work_stealing([&] { parallel_chunks(100, [&](int64_t) { ++calls; }); });
  EXPECT_EQ(calls, 100);
  finished = true;
  other.join();
}

/// Their bodies may call operators of libtorch.
TEST(WorkStealing, ParallelOperatorsRunOnLibtorchsThreads) {
  std::atomic<int> parallel = 0;
  with_work_stealing([&] { parallel_operators(2, [&](int64_t) { parallel += at::in_parallel_region(); }); });
  EXPECT_EQ(parallel, at::get_num_threads() > 1 ? 2 : 0);
}

}  // namespace bellows::kernels
