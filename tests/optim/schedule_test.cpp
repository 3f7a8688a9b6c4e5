#include "bellows/optim/schedule.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace bellows::optim {

TEST(Schedule, ConstantIsConstant) {
  const Schedule schedule = constant_schedule(0.5);
  EXPECT_EQ(schedule(0), 0.5);
  EXPECT_EQ(schedule(1000000), 0.5);
}

TEST(Schedule, WarmupRisesToTheRateBehindIt) {
  const Schedule schedule = linear_warmup(4);
  EXPECT_DOUBLE_EQ(schedule(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule(2), 0.75);
  EXPECT_EQ(schedule(3), 1);
  EXPECT_EQ(schedule(4), 1);
}

TEST(Schedule, WarmupScalesWhatComesBehindIt) {
  const Schedule schedule = linear_warmup(2, [](int64_t step) { return step == 0 ? 10.0 : 2.0; });
  EXPECT_DOUBLE_EQ(schedule(0), 5);
  EXPECT_DOUBLE_EQ(schedule(1), 2);
}

TEST(Schedule, WarmupOfNoStepsIsNone) {
  EXPECT_EQ(linear_warmup(0)(0), 1);
}

TEST(Schedule, NegativeWarmupIsRefused) {
  EXPECT_THROW(linear_warmup(-1), c10::ValueError);
}

}  // namespace bellows::optim
