#include "bellows/data/loader/thread_budget.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace bellows::data::testing {
namespace {

/// Workers that take a second a sample, or wait for it, and a model that is as fast as it likes.
class Loop {
 public:
  explicit Loop(int64_t cores) : budget_(cores), cores_(cores) {}

  int64_t run(int64_t windows) {
    for (; windows > 0; --windows) {
      const auto threads = static_cast<double>(budget_.threads());
      const double able = computing ? std::min(threads, cores_ - taken) : threads;  // samples a second
      const double rate = std::min({able, wanted, bandwidth});
      budget_.update({.seconds = 1,
                      .wait_s = rate < wanted ? 1 - rate / wanted : 0,
                      .busy_s = computing ? std::min(threads, rate * threads / able) : rate,
                      .blocked_share = computing ? 0 : 0.98,
                      .process_cpu_s = computing ? rate + taken : taken,
                      .samples = static_cast<int64_t>(1000 * rate)});
    }
    return budget_.threads();
  }

  double wanted = 1e9;     // samples a second that the model takes
  double taken = 0;        // cores that the model uses
  double bandwidth = 1e9;  // samples a second that the disk gives
  bool computing = true;

 private:
  ThreadBudget budget_;
  double cores_;
};

TEST(ThreadBudget, StartsLowAndGrowsToTheCores) {
  Loop loop(8);
  EXPECT_LE(loop.run(0), 2);
  EXPECT_EQ(loop.run(20), 8);
  EXPECT_EQ(loop.run(50), 8);
}

TEST(ThreadBudget, GrowsNoFurtherThanTheModelNeeds) {
  Loop loop(16);
  loop.wanted = 5.5;
  const int64_t threads = loop.run(40);
  EXPECT_GE(threads, 6);
  EXPECT_LE(threads, 9);
}

TEST(ThreadBudget, LeavesTheModelItsCores) {
  Loop loop(8);
  loop.taken = 5;
  EXPECT_LE(loop.run(60), 4);
}

TEST(ThreadBudget, OneCoreGetsOneThread) {
  Loop loop(1);
  EXPECT_EQ(loop.run(30), 1);
}

TEST(ThreadBudget, ThreadsThatOnlyWaitMayBeMoreThanCores) {
  Loop loop(2);
  loop.computing = false;
  EXPECT_EQ(loop.run(40), 8);
}

TEST(ThreadBudget, TakesBackWhatBringsNothing) {
  Loop loop(4);
  loop.computing = false;
  loop.bandwidth = 3;
  loop.run(200);
  int64_t most = 0;
  double sum = 0;
  for (int i = 0; i < 100; ++i) {
    const int64_t now = loop.run(1);
    most = std::max(most, now);
    sum += static_cast<double>(now);
  }
  EXPECT_LE(most, 7) << "tried now and then";
  EXPECT_LT(sum / 100, 4.5) << "and given up again";
}

TEST(ThreadBudget, ShrinksWhenBatchesPileUpAndOnlyThen) {
  Loop loop(8);
  loop.run(20);
  loop.wanted = 2.5;
  EXPECT_GE(loop.run(3), 7) << "not at the first sign";
  const int64_t rest = loop.run(60);
  EXPECT_GE(rest, 3);
  EXPECT_LE(rest, 5);
  EXPECT_EQ(loop.run(60), rest) << "and stays";
  loop.wanted = 1e9;
  EXPECT_EQ(loop.run(60), 8) << "grows again";
}

TEST(ThreadBudget, IgnoresEmptyWindows) {
  ThreadBudget budget(4);
  const int64_t before = budget.threads();
  EXPECT_EQ(budget.update({}), before);
}

}  // namespace
}  // namespace bellows::data::testing
