// Batches that the loader copies to the GPU on its own stream.
#include <gtest/gtest.h>

#include "bellows/data/loader/loader.h"
#include "bellows/data/loader/transfer.h"
#include "bellows/data/source.h"
#include "tests/device/support.h"

namespace bellows::data {

namespace {

using test::gpu;

/// Large enough that a copy takes longer than the next statement.
Batch large_batch(int64_t value) {
  const at::Tensor x = at::full({1 << 22}, value, at::TensorOptions(at::kLong).pinned_memory(true));
  return Batch({{"x", x}}, {0});
}

}  // namespace

TEST(TransferOnDevice, WorkOnTheCurrentStreamSeesTheCopy) {
  Transfer transfer(gpu);
  for (int64_t round = 0; round < 20; ++round) {
    transfer.begin(large_batch(2 * round));
    transfer.begin(large_batch(2 * round + 1));
    for (const int64_t value : {2 * round, 2 * round + 1}) {
      const Batch batch = transfer.finish();
      ASSERT_EQ(batch["x"].device(), gpu);
      EXPECT_TRUE(batch["x"].eq(value).all().item<bool>());
    }
    transfer.collect();
  }
}

TEST(TransferOnDevice, HostMemoryIsPinned) {
  const c10::DataPtr memory = Transfer::host_allocator(gpu)->allocate(1 << 16);
  EXPECT_TRUE(at::from_blob(memory.get(), {1 << 16}, at::kByte).is_pinned());
}

TEST(LoaderOnDevice, GivesTheBatchesOfTheCpu) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({1000, 300}), y = torch::randint(10, {1000}, at::kLong);
  for (const int64_t threads : {0, 3}) {
    const auto loader_on = [&](const c10::Device& device) {
      const LoaderOptions options{
          .batch_size = 64, .order = shuffled(), .seed = 3, .device = device, .threads = threads, .prefetch = 3};
      return Loader(from_tensors({{"x", x}, {"y", y}}), {}, options);
    };
    Loader ours = loader_on(gpu), expected = loader_on(at::kCPU);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      ours.start(epoch), expected.start(epoch);
      int64_t batches = 0;
      while (const auto want = expected.next()) {
        const auto batch = ours.next();
        ASSERT_TRUE(batch);
        ++batches;
        // Work that keeps the GPU busy, so that a copy that did not wait for it would overwrite a batch in use.
        const at::Tensor product = at::mm((*batch)["x"], (*batch)["x"].t());
        EXPECT_TRUE(at::equal((*batch)["x"].cpu(), (*want)["x"]));
        EXPECT_TRUE(at::equal((*batch)["y"].cpu(), (*want)["y"]));
        EXPECT_TRUE(product.isfinite().all().item<bool>());
      }
      EXPECT_FALSE(ours.next());
      EXPECT_EQ(batches, 16);
    }
  }
}

}  // namespace bellows::data
