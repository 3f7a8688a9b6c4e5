#include <gmock/gmock.h>

#include "launched.h"

namespace bellows::comm::testing {

namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// All ranks have made steps together.
bool stepping(const cli::Outcome& so_far, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (so_far.out.find("[rank " + std::to_string(rank) + "] step 10\n") == std::string::npos) return false;
  }
  return true;
}

}  // namespace

TEST(Watchdog, NamesARankThatWasKilled) {
  cli::Process job(launch_of({"-n", "3"}, {rank_program, "steps", "30", "60"}));
  cli::Outcome seen;
  ASSERT_TRUE(job.wait_until([&](const cli::Outcome& so_far) { return seen = so_far, stepping(so_far, 3); }));
  const auto start = std::chrono::steady_clock::now();
  kill(number_of_rank(seen.out, 2, "pid"), SIGKILL);
  const cli::Outcome outcome = job.finish(20);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));  // 5 on an idle machine
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("bellows: rank 2 was killed by signal 9 (Killed)"));
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(outcome.err,
                ContainsRegex(std::string("\\[rank ") + rank + "\\] #[0-9]+ all_reduce Float\\[4\\] failed on rank " +
                              rank + ", group world: Rank 2 \\(pid [0-9]+ on .*\\) has ended unexpectedly"));
  }
}

TEST(Watchdog, NamesARankThatWasStopped) {
  cli::Process job(launch_of({"-n", "3"}, {rank_program, "steps", "30", "3"}));
  cli::Outcome seen;
  ASSERT_TRUE(job.wait_until([&](const cli::Outcome& so_far) { return seen = so_far, stepping(so_far, 3); }));
  const int stopped = number_of_rank(seen.out, 0, "pid");
  kill(stopped, SIGSTOP);
  const cli::Outcome outcome = job.finish(40);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  const std::string words = "Rank 0 (pid " + std::to_string(stopped) + " on ";
  const size_t warning = outcome.err.find(" s. " + words);
  const size_t error = outcome.err.find("failed on rank 1, group world: " + words);
  ASSERT_NE(warning, std::string::npos) << outcome.err;
  EXPECT_THAT(outcome.err.substr(0, warning), ContainsRegex("has been waiting for [0-9.]+$"));
  EXPECT_THAT(outcome.err.substr(warning), ContainsRegex("is stopped \\(SIGSTOP or a debugger\\)"));
  EXPECT_LT(warning, error) << "said before the timeout ends the job";
  EXPECT_THAT(outcome.err, Not(HasSubstr("[rank 2] warning"))) << "one voice is enough";
  EXPECT_TRUE(ended(stopped));
}

TEST(Watchdog, NamesARankThatDoesSomethingElse) {
  const auto late = launched({"-n", "2"}, {rank_program, "late", "30", "3"});
  EXPECT_EQ(late.exit_code, 1);
  EXPECT_THAT(late.err,
              ContainsRegex("\\[rank 0\\] .*group world: #2 all_reduce Float\\[5\\] has been waiting for [0-9.]+ s. "
                            "Rank 1 \\(pid [0-9]+ on .*\\) did not call it; its last call in this group was #1 "
                            "all_reduce Float\\[4\\]"));
  const auto other = launched({"-n", "3"}, {rank_program, "other", "30", "3"});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.err, ContainsRegex("Rank 1 \\(pid [0-9]+ on .*\\) called #2 all_gather Float\\[3\\] instead"));
}

TEST(Watchdog, NamesARankThatHasLeft) {
  const auto outcome = launched({"-n", "2"}, {rank_program, "uneven", "30", "3"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err,
              ContainsRegex("\\[rank 0\\] #3 all_reduce Float\\[4\\] failed on rank 0, group world: Rank 1 "
                            "\\(pid [0-9]+ on .*\\) has left and did not call it; its last call in this group was #2"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("unfinished")));
}

TEST(Watchdog, NamesARankThatDoesNotSend) {
  const auto outcome = launched({"-n", "2"}, {rank_program, "unsent", "30", "3"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err,
              ContainsRegex("\\[rank 0\\] #2 send/receive Float\\[4\\] failed on rank 0, group world, 1 to 0: Rank 1 "
                            "\\(pid [0-9]+ on .*\\) did not call it; its last call in this group was #1 send/receive"));
}

/// Rank 0 does not exchange tensors with rank 2, but waits for rank 1, which waits for rank 2.
TEST(Watchdog, NamesARankThatWasKilledBehindAnother) {
  cli::Process job(launch_of({"-n", "4"}, {rank_program, "chain", "30", "60"}));
  cli::Outcome seen;
  ASSERT_TRUE(job.wait_until([&](const cli::Outcome& so_far) { return seen = so_far, stepping(so_far, 4); }));
  kill(number_of_rank(seen.out, 2, "pid"), SIGKILL);
  const cli::Outcome outcome = job.finish(20);
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.err;
  EXPECT_THAT(outcome.err,
              ContainsRegex("\\[rank [013]\\] #[0-9]+ send/receive Float\\[4\\] failed on rank [013], group "
                            "world, .*: Rank 2 \\(pid [0-9]+ on .*\\) has ended unexpectedly"));
}

}  // namespace bellows::comm::testing
