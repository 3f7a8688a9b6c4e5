#include "bellows/data/loader/transfer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include "bellows/data/loader/batch_memory.h"
#include "tests/data/late_device.h"
#include "tests/data/ragged_source.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using test::late_device;
using test::seen_by_current_stream;

Batch a_batch(int64_t value) {
  return Batch({{"x", at::full({4, 3}, value, at::kLong)}}, {0, 1, 2, 3});
}

TEST(Transfer, CopiesWaitForNobodyAndAreThereWhenTheyAreUsed) {
  Transfer transfer(late_device);
  transfer.begin(a_batch(7));
  transfer.begin(a_batch(8));
  EXPECT_GE(test::held_back(), 2) << "nothing has waited";
  for (const int64_t value : {7, 8}) {
    const int64_t recorded = test::recorded_streams();
    const Batch batch = transfer.finish();
    EXPECT_EQ(batch["x"].device(), late_device);
    EXPECT_NE(batch["x"].const_data_ptr<int64_t>()[0], value) << "still late";
    EXPECT_TRUE(at::equal(seen_by_current_stream(batch["x"]), at::full({4, 3}, value, at::kLong)));
    EXPECT_EQ(test::recorded_streams(), recorded + 1);
  }
  EXPECT_FALSE(transfer.pending());
}

TEST(Transfer, HoldsTheHostsMemoryUntilTheCopyIsDone) {
  const auto memory = std::make_shared<BatchMemory>(4, Transfer::host_allocator(late_device));
  Transfer transfer(late_device);
  const auto lend = [&](int64_t value) {
    c10::DataPtr block = memory->take(8);
    *static_cast<int64_t*>(block.get()) = value;
    void* data = block.get();
    const auto give_back = block.get_deleter();
    return Batch(
        {{"x", at::for_blob(data, {1}).context(block.release_context(), give_back).options(at::kLong).make_tensor()}},
        {0});
  };
  transfer.begin(lend(5));
  const Batch first = transfer.finish();
  transfer.begin(lend(6));  // may not have the memory of the first: its copy has not run
  EXPECT_EQ(memory->allocated(), 2);
  EXPECT_EQ(seen_by_current_stream(first["x"]).item<int64_t>(), 5);
  transfer.collect();
  const Batch second = transfer.finish();
  transfer.begin(lend(7));  // has the first's
  EXPECT_EQ(memory->allocated(), 2);
  EXPECT_EQ(seen_by_current_stream(second["x"]).item<int64_t>(), 6);
  EXPECT_EQ(seen_by_current_stream(transfer.finish()["x"]).item<int64_t>(), 7);
}

TEST(Transfer, EndsWithCopiesInProgress) {
  test::run_late_device();
  {
    Transfer transfer(late_device);
    for (int64_t i = 0; i < 3; ++i) transfer.begin(a_batch(i));
    const Batch out = transfer.finish();
    transfer.abandon();
    EXPECT_FALSE(transfer.pending());
    transfer.begin(a_batch(9));
  }
  EXPECT_EQ(test::held_back(), 1) << "all copies have run; what waits is the current stream's";
  test::run_late_device();
}

TEST(Transfer, TheCpuNeedsNone) {
  EXPECT_EQ(Transfer::host_allocator(c10::kCPU), c10::GetCPUAllocator());
}

LoaderOptions on_device(int64_t threads) {
  return {.batch_size = 5, .order = shuffled(), .seed = 3, .device = late_device, .threads = threads, .prefetch = 3};
}

TEST(LoaderOnDevice, GivesTheSameBatchesInTheSameOrder) {
  for (const int64_t threads : {0, 1, 3}) {
    LoaderOptions plain = on_device(threads);
    plain.device = c10::kCPU;
    Loader loader(std::make_shared<CountingSource>(48), {}, on_device(threads)),
        reference(std::make_shared<CountingSource>(48), {}, plain);
    const int64_t pinned = test::pinned_bytes();
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      loader.start(epoch);
      reference.start(epoch);
      while (const auto expected = reference.next()) {
        const auto batch = loader.next();
        ASSERT_TRUE(batch);
        ASSERT_EQ(batch->ids(), expected->ids());
        ASSERT_EQ(batch->index(), expected->index());
        ASSERT_TRUE(at::equal(seen_by_current_stream((*batch)["x"]), (*expected)["x"]));
      }
      EXPECT_FALSE(loader.next());
    }
    EXPECT_GT(test::pinned_bytes(), pinned);
    EXPECT_LE(test::pinned_bytes() - pinned, 12 * 5 * 8) << "recycled";
    EXPECT_GT(loader.report()[LoadStage::transfer].total_s, 0);
  }
}

TEST(LoaderOnDevice, PadsAsOnTheCpuInMemoryThatIsRecycled) {
  std::vector<at::Tensor> arrays;
  arrays.reserve(48);
  for (int64_t i = 0; i < 48; ++i) arrays.push_back(at::full({i * 5 % 17}, i, at::kLong));
  const auto source = std::make_shared<RaggedSource>(arrays);
  PipelineOptions pipeline;
  pipeline.padding = {{"x", -1, 4}};
  LoaderOptions plain = on_device(2);
  plain.device = c10::kCPU;
  Loader loader(source, pipeline, on_device(2)), reference(source, pipeline, plain);
  const int64_t pinned = test::pinned_bytes();
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    loader.start(epoch);
    reference.start(epoch);
    while (const auto expected = reference.next()) {
      const auto batch = loader.next();
      ASSERT_TRUE(batch);
      for (const auto& [name, tensor] : expected->tensors())
        ASSERT_TRUE(at::equal(seen_by_current_stream((*batch)[name]), tensor));
    }
  }
  EXPECT_LE(test::pinned_bytes() - pinned, 3 * 12 * 1024) << "recycled: at most 5 x 16 of 8 bytes, as a power of two";
}

TEST(LoaderOnDevice, ErrorsComeWhereTheyBelong) {
  const auto source = std::make_shared<CountingSource>(50, [](int64_t index) {
    if (index == 23) throw std::runtime_error("unreadable");
  });
  LoaderOptions options = on_device(2);
  options.order = nullptr;
  Loader loader(source, {}, options);
  for (int64_t batch = 0; batch < 10; ++batch) {
    if (batch == 4) {
      EXPECT_THROW(loader.next(), std::runtime_error);
    } else {
      EXPECT_EQ(loader.next()->index(), batch);
    }
  }
  EXPECT_FALSE(loader.next());
}

TEST(LoaderOnDevice, CountsSkippedSamplesWhenTheirBatchIsHandedOut) {
  const auto source = std::make_shared<CountingSource>(50, [](int64_t index) {
    if (index % 10 == 7) throw std::runtime_error("unreadable");
  });
  LoaderOptions options = on_device(2);
  options.order = nullptr;
  options.on_bad_sample = OnBadSample::skip;
  Loader loader(source, {}, options);
  for (int64_t batch = 0; loader.next(); ++batch) EXPECT_EQ(loader.skipped(), (batch + 1) / 2);
}

TEST(LoaderOnDevice, MayBeStartedAnewAndDestroyedInTheMidst) {
  for (int round = 0; round < 20; ++round) {
    Loader loader(std::make_shared<CountingSource>(60), {}, on_device(2));
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      loader.start(epoch);
      for (int i = 0; i < round % 5; ++i) loader.next();
    }
  }
  test::run_late_device();
}

}  // namespace
}  // namespace bellows::data::testing
