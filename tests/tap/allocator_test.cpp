#include "support.h"

#include <gmock/gmock.h>

#include <atomic>

namespace bellows::tap::testing {
namespace {

struct Sizes : AllocationListener {
  void on_allocation(const AllocationEvent& event) override {
    (event.bytes > 0 ? allocated : freed) += std::abs(event.bytes);
    ++events;
    last_current = event.current_bytes;
    if (allocate) torch::empty({100});
    if (fail) throw std::runtime_error("listener");
  }
  std::atomic<int64_t> allocated{0}, freed{0}, last_current{0}, events{0};
  bool allocate = false, fail = false;
};

TEST(Allocator, CountsAllocationsFreesAndPeak) {
  auto before_install = std::make_unique<at::Tensor>(torch::zeros({100000}));
  install_cpu_allocator();
  install_cpu_allocator();
  EXPECT_TRUE(cpu_allocator_installed());
  const auto start = cpu_allocation_counters();
  {
    auto x = torch::empty({1 << 20}, at::kByte);
    EXPECT_GE(cpu_allocation_counters().current_bytes - start.current_bytes, 1 << 20);
    EXPECT_LT(cpu_allocation_counters().current_bytes - start.current_bytes, (1 << 20) + 8192);
  }
  const auto end = cpu_allocation_counters();
  EXPECT_EQ(end.current_bytes, start.current_bytes);
  EXPECT_GE(end.peak_bytes, start.current_bytes + (1 << 20));
  EXPECT_EQ(end.allocations - start.allocations, 1);
  EXPECT_EQ(end.frees - start.frees, 1);
  reset_cpu_allocation_peak();
  EXPECT_EQ(cpu_allocation_counters().peak_bytes, start.current_bytes);
}

/// Runs first in its process only if it is alone; the block below comes from libtorch's own allocator in any case.
TEST(Allocator, MemoryOfTheOldAllocatorDoesNotCount) {
  install_cpu_allocator();
  const auto start = cpu_allocation_counters();
  { auto block = c10::GetDefaultCPUAllocator()->allocate(4096); }
  const auto end = cpu_allocation_counters();
  EXPECT_EQ(end.current_bytes, start.current_bytes);
  EXPECT_EQ(end.frees, start.frees);
}

TEST(Allocator, EmptyTensorsAndResizing) {
  install_cpu_allocator();
  const auto start = cpu_allocation_counters();
  {
    auto none = torch::empty({0});
    none.resize_({1000});
    auto more = torch::empty({3, 0, 2});
  }
  EXPECT_EQ(cpu_allocation_counters().current_bytes, start.current_bytes);
}

TEST(Allocator, FreesFromOtherThreads) {
  auto listener = std::make_shared<Sizes>();
  install_cpu_allocator();
  const int64_t start = cpu_allocation_counters().current_bytes;
  {
    AllocationGuard guard(listener);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([x = torch::empty({5000 + i})]() mutable {
        for (int k = 0; k < 200; ++k) x = torch::empty({5000 + k});
        x.reset();
      });
    }
    for (auto& t : threads) t.join();
  }
  EXPECT_EQ(cpu_allocation_counters().current_bytes, start);
  EXPECT_EQ(listener->allocated, listener->freed);
  EXPECT_EQ(listener->events, 2 * 4 * 201);
}

TEST(Allocator, ListenersMayAllocateOrFailAndStopAtTheGuardsEnd) {
  auto first = std::make_shared<Sizes>(), second = std::make_shared<Sizes>();
  first->allocate = first->fail = true;
  {
    AllocationGuard a(first);
    AllocationGuard b(second);
    torch::empty({10});
  }
  EXPECT_EQ(first->events, 2);
  EXPECT_EQ(second->events, 2);
  torch::empty({10});
  EXPECT_EQ(first->events, 2);
}

TEST(Allocator, ConvolutionThroughOneDnnIsUnchanged) {
  install_cpu_allocator();
  torch::manual_seed(1);
  const auto x = torch::randn({2, 16, 12, 12}), w = torch::randn({32, 16, 3, 3});
  const auto y = at::conv2d(x, w);
  const auto reference = at::conv2d(x.to(at::kDouble), w.to(at::kDouble));
  EXPECT_TRUE(at::allclose(y.to(at::kDouble), reference, 1e-4, 1e-4));
}

TEST(Allocator, NullIsRefused) {
  EXPECT_THROW(AllocationGuard(nullptr), c10::ValueError);
}

}  // namespace
}  // namespace bellows::tap::testing
