#include "bellows/inspect/memory.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "fake_device.h"

namespace bellows::inspect {
namespace {

constexpr int64_t mib = 1 << 20;

at::Tensor mebibytes(int64_t n) {
  return at::empty({n * mib}, at::kByte);
}

TEST(Memory, CurrentAndPeakFollowATensor) {
  const MemoryStats before = memory_stats();
  reset_peak();
  { const at::Tensor held = mebibytes(8); }
  const MemoryStats after = memory_stats();
  EXPECT_NEAR(after.current_bytes, before.current_bytes, 64 << 10);
  EXPECT_GE(after.peak_bytes, before.current_bytes + 8 * mib);
  EXPECT_LT(after.peak_bytes, before.current_bytes + 9 * mib);
  EXPECT_GT(after.allocations, before.allocations);
}

TEST(Memory, ResetPeakStartsFromThePresentSize) {
  const at::Tensor held = mebibytes(4);
  { const at::Tensor brief = mebibytes(16); }
  reset_peak();
  const MemoryStats now = memory_stats();
  EXPECT_EQ(now.peak_bytes, now.current_bytes);
  EXPECT_GE(now.current_bytes, 4 * mib);
}

TEST(Memory, ResidentMemoryIsThere) {
  const at::Tensor touched = at::ones({16 * mib}, at::kByte);
  const MemoryStats now = memory_stats();
  EXPECT_GT(now.rss_bytes, 16 * mib);
  EXPECT_GE(now.peak_rss_bytes, now.rss_bytes);
  EXPECT_THAT(now.to_string(), testing::HasSubstr("resident"));
}

TEST(Memory, NestedScopesHaveTheirOwnPeaks) {
  const MemoryScope outer;
  { const at::Tensor first = mebibytes(12); }
  at::Tensor kept;
  int64_t inner_growth = 0, inner_net = 0;
  {
    const MemoryScope inner;
    kept = mebibytes(2);
    { const at::Tensor brief = mebibytes(3); }
    inner_growth = inner.peak_growth_bytes();
    inner_net = inner.net_bytes();
  }
  EXPECT_NEAR(inner_growth, 5 * mib, 64 << 10) << "the outer scope's 12 MiB do not count";
  EXPECT_NEAR(inner_net, 2 * mib, 64 << 10);
  EXPECT_NEAR(outer.peak_growth_bytes(), 12 * mib, 64 << 10)
      << "the inner scope does not shorten the outer one's memory";
  EXPECT_NEAR(outer.net_bytes(), 2 * mib, 64 << 10);
}

TEST(Memory, ResetPeakLeavesScopesAlone) {
  const MemoryScope scope;
  { const at::Tensor brief = mebibytes(6); }
  reset_peak();
  EXPECT_GE(scope.peak_growth_bytes(), 6 * mib);
}

TEST(Memory, ScopesThatOverlapWithoutNesting) {
  auto first = std::make_unique<MemoryScope>();
  { const at::Tensor brief = mebibytes(7); }
  const MemoryScope second;
  EXPECT_GE(first->peak_growth_bytes(), 7 * mib);
  first.reset();
  { const at::Tensor brief = mebibytes(3); }
  EXPECT_NEAR(second.peak_growth_bytes(), 3 * mib, 64 << 10);
}

TEST(Memory, NetIsNegativeWhenMoreIsFreed) {
  at::Tensor held = mebibytes(5);
  const MemoryScope scope;
  held = at::Tensor();
  EXPECT_NEAR(scope.net_bytes(), -5 * mib, 64 << 10);
}

TEST(Memory, CountsOtherThreads) {
  const MemoryScope scope;
  std::thread([] { const at::Tensor brief = mebibytes(9); }).join();
  EXPECT_GE(scope.peak_growth_bytes(), 9 * mib);
}

TEST(Memory, AcceleratorFiguresComeFromItsAllocator) {
  const MemoryStats before = memory_stats(test::fake_device);
  const MemoryScope scope(test::fake_device);
  const at::Tensor held = test::empty_on_fake_device({1000});
  { const at::Tensor brief = test::empty_on_fake_device({5000}); }
  const MemoryStats now = memory_stats(test::fake_device);
  EXPECT_EQ(now.current_bytes - before.current_bytes, 4000);
  EXPECT_EQ(now.peak_bytes - before.current_bytes, 24000);
  EXPECT_EQ(scope.peak_growth_bytes(), 24000);
  EXPECT_EQ(scope.net_bytes(), 4000);
  EXPECT_EQ(now.reserved_bytes - before.reserved_bytes, 48000);
  EXPECT_EQ(now.allocations - before.allocations, 2);
}

TEST(Memory, DeviceWithoutAnAllocatorIsNamed) {
  try {
    memory_stats(c10::Device(c10::DeviceType::MTIA, 0));
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("memory_stats: expected the CPU or a device with a caching allocator, got mtia:0"));
  }
}

std::vector<double> counter_values(const TraceWriter& writer, const std::string& name) {
  std::vector<double> values;
  const auto trace = nlohmann::json::parse(writer.to_json());
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "C" && event["name"] == name) values.push_back(event["args"]["value"]);
  }
  return values;
}

TEST(MemoryTimeline, DrawsEachRiseAndFall) {
  TraceWriter writer;
  {
    const MemoryTimeline timeline(writer);
    { const at::Tensor brief = mebibytes(10); }
    const at::Tensor small = at::empty({100});
  }
  const auto values = counter_values(writer, "memory cpu [MiB]");
  ASSERT_GE(values.size(), 3u);
  EXPECT_NEAR(*std::max_element(values.begin(), values.end()) - values.front(), 10, 0.1);
  EXPECT_NEAR(values.back(), values.front(), 0.1);
  const size_t size = writer.size();
  const at::Tensor later = mebibytes(10);
  EXPECT_EQ(writer.size(), size) << "nothing is drawn after its end";
}

TEST(MemoryTimeline, SamplesAnAcceleratorWhenAsked) {
  TraceWriter writer;
  MemoryTimeline timeline(writer, {.device = test::fake_device});
  const at::Tensor held = test::empty_on_fake_device({mib});
  timeline.sample();
  const auto values = counter_values(writer, "memory fake:0 [MiB]");
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[1] - values[0], 4);
}

}  // namespace
}  // namespace bellows::inspect
