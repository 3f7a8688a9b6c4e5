#include <gmock/gmock.h>

#include "launched.h"

namespace bellows::comm::testing {

namespace {

using ::testing::HasSubstr;

/// Each rank compares with what it computes alone, and fails otherwise.
void expect_all_done(int ranks, const std::string& scenario) {
  const auto outcome = launched({"-n", std::to_string(ranks)}, {rank_program, scenario});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_THAT(outcome.out, HasSubstr("[rank " + std::to_string(rank) + "] " + scenario + " done\n"));
}

}  // namespace

TEST(Collectives, TwoRanksGetWhatOneComputes) {
  expect_all_done(2, "collectives");
}

TEST(Collectives, FourRanksGetWhatOneComputes) {
  expect_all_done(4, "collectives");
}

TEST(Collectives, AWorldOfOneNeedsNoLauncher) {
  const Alone alone = start_rank("", "collectives").get();
  EXPECT_EQ(alone.exit_code, 0) << alone.text;
  EXPECT_EQ(alone.text, "collectives done\n");
}

TEST(PointToPoint, RanksGetWhatOthersSend) {
  expect_all_done(2, "transfers");
  expect_all_done(4, "transfers");
}

TEST(Mesh, GroupsOfEachAxis) {
  expect_all_done(4, "mesh");
  expect_all_done(2, "mesh");  // one axis has a single rank
}

}  // namespace bellows::comm::testing
