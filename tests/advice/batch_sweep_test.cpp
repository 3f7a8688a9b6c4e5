#include "bellows/advice/batch_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace bellows::train {
namespace {

using testing::ElementsAre;

std::vector<int64_t> sizes_of(const std::vector<BatchThroughput>& sweep) {
  std::vector<int64_t> sizes;
  sizes.reserve(sweep.size());
  for (const BatchThroughput& row : sweep) sizes.push_back(row.batch_size);
  return sizes;
}

TEST(BatchSweep, EndsWhereTheThroughputNoLongerGrows) {
  Recipe recipe;
  recipe.batch_size = 16;
  // 10 ms of overhead, and 1 ms per sample up to 32 samples; then 2 ms for each further sample.
  const auto seconds = [](const Recipe& larger) {
    const auto samples = static_cast<double>(larger.batch_size);
    return 0.010 + 0.001 * samples + 0.001 * std::max(0.0, samples - 32);
  };
  const std::vector<BatchThroughput> sweep = sweep_batches(recipe, 1, seconds);
  EXPECT_THAT(sizes_of(sweep), ElementsAre(16, 32, 64));
  EXPECT_DOUBLE_EQ(sweep[1].samples_per_s(), 32 / 0.042);
  EXPECT_EQ(saturating_batch(sweep), 32);
}

TEST(BatchSweep, StopsAtEightTimesTheBatch) {
  Recipe recipe;
  recipe.batch_size = 2;
  const std::vector<BatchThroughput> sweep = sweep_batches(recipe, 1, [](const Recipe&) { return 0.01; });
  EXPECT_THAT(sizes_of(sweep), ElementsAre(2, 4, 8, 16));
  EXPECT_EQ(saturating_batch(sweep), 0);
  EXPECT_EQ(saturating_batch({}), 0);
}

TEST(BatchSweep, TrainsWithEachBatchSize) {
  Recipe recipe;
  recipe.data = std::string(BELLOWS_SOURCE_DIR) + "/data/digits/train-000.tar";
  recipe.eval_split = "none";
  recipe.model = "mlp";
  recipe.num_workers = 0;
  const std::vector<BatchThroughput> sweep = sweep_batches(recipe, 2);
  ASSERT_GE(sweep.size(), 2u);
  EXPECT_EQ(sweep[0].batch_size, 32);
  for (const BatchThroughput& row : sweep) EXPECT_GT(row.seconds, 0);
}

}  // namespace
}  // namespace bellows::train
