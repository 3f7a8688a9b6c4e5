#include "bellows/optim/schedules/batch_size.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "bellows/optim/schedules/schedule_compose.h"

namespace bellows::optim {

TEST(BatchSize, TheScalingRuleCountsTheGlobalBatch) {
  const GlobalBatch batch{.per_process = 32, .world_size = 4, .accumulation = 2};
  EXPECT_EQ(batch.size(), 256);
  EXPECT_DOUBLE_EQ(scaled_lr(0.1, batch), 0.1);
  EXPECT_DOUBLE_EQ(scaled_lr(0.1, {.per_process = 256, .world_size = 32}), 3.2);  // arXiv:1706.02677's 8192
  EXPECT_DOUBLE_EQ(scaled_lr(1e-3, {.per_process = 8}, 32), 2.5e-4);
}

TEST(BatchSize, GrowsInEqualIncrements) {
  const BatchSizeSchedule ramp = linear_batch_size({.start = 16, .end = 64, .increment = 16, .length = 100});
  EXPECT_EQ(ramp(0), 16);
  EXPECT_EQ(ramp(33), 16);
  EXPECT_EQ(ramp(34), 32);
  EXPECT_EQ(ramp(99), 48);
  EXPECT_EQ(ramp(100), 64);
  EXPECT_EQ(ramp(int64_t{1} << 60), 64);
  EXPECT_EQ(linear_batch_size({.start = 7, .end = 7, .length = 0})(0), 7);
}

TEST(BatchSize, GrowsAtMilestones) {
  const BatchSizeSchedule steps = multi_step_batch_size(32, 200, {3, 5, 9, 11});
  EXPECT_EQ(steps(2), 32);
  EXPECT_EQ(steps(3), 64);
  EXPECT_EQ(steps(5), 128);
  EXPECT_EQ(steps(9), 200);
  EXPECT_EQ(steps(1000), 200);
}

TEST(BatchSize, TurnsIntoForwardPassesAndARate) {
  const BatchSizeSchedule ramp = linear_batch_size({.start = 32, .end = 128, .increment = 32, .length = 3});
  EXPECT_EQ(accumulation_for(ramp(2), 16, 2), 3);
  const Schedule rate = chained({follow_batch_size(ramp, 32), exponential_lr(0.5)});
  EXPECT_DOUBLE_EQ(rate(0), 1);
  EXPECT_DOUBLE_EQ(rate(1), 1);
  EXPECT_DOUBLE_EQ(rate(3), 0.5);
}

TEST(BatchSize, WrongNumbersAreRefused) {
  EXPECT_THROW(scaled_lr(0.1, {.per_process = 0}), c10::ValueError);
  EXPECT_THROW(scaled_lr(0.1, {.world_size = -1}), c10::ValueError);
  EXPECT_THROW(scaled_lr(-0.1, {}), c10::ValueError);
  EXPECT_THROW(scaled_lr(0.1, {}, 0), c10::ValueError);
  EXPECT_THROW(linear_batch_size({.start = 0, .end = 5}), c10::ValueError);
  EXPECT_THROW(linear_batch_size({.start = 9, .end = 5}), c10::ValueError);
  EXPECT_THROW(linear_batch_size({.start = 1, .end = 6, .increment = 2}), c10::ValueError);
  EXPECT_THROW(linear_batch_size({.start = 1, .end = 9, .length = -1}), c10::ValueError);
  EXPECT_THROW(linear_batch_size({.start = 1, .end = 1 << 20, .length = int64_t{1} << 60}), c10::ValueError);
  EXPECT_THROW(multi_step_batch_size(32, 16, {3}), c10::ValueError);
  EXPECT_THROW(multi_step_batch_size(32, 64, {5, 3}), c10::ValueError);
  EXPECT_THROW(multi_step_batch_size(32, 64, {5}, 0), c10::ValueError);
  EXPECT_THROW(accumulation_for(100, 32), c10::ValueError);
  EXPECT_THROW(accumulation_for(16, 32), c10::ValueError);
  EXPECT_THROW(follow_batch_size(nullptr, 32), c10::ValueError);
}

}  // namespace bellows::optim
