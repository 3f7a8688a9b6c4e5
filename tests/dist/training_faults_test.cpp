// One rank of three is killed or stopped at a point of DistributedDataParallel's training that is known by name.
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <map>
#include <thread>

#include "training_job.h"

namespace bellows::testing {

namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A point, and what the others wait in when the victim does not come further.
struct Point {
  const char *name, *call;
};

void PrintTo(const Point& point, std::ostream* out) {
  *out << point.name;
}

class KilledRank : public ::testing::TestWithParam<Point> {};

/// The process of a rank, as it said; the last that did.
int process_of_rank(const std::string& out, int rank) {
  const std::string start = "[rank " + std::to_string(rank) + "] pid ";
  const size_t at = out.rfind(start);
  return at == std::string::npos ? 0 : std::stoi(out.substr(at + start.size()));
}

bool is_stopped(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  return text.find(") T") != std::string::npos;
}

/// The process of rank 1, which has stopped itself.
int wait_for_stop(cli::Process& job) {
  int pid = 0;
  job.wait_until([&](const cli::Outcome& so_far) {
    pid = process_of_rank(so_far.out, 1);
    return pid > 0 && is_stopped(pid);
  });
  return pid;
}

}  // namespace

TEST_P(KilledRank, TheJobGoesOnWithTheSameBits) {
  const cli::Scratch scratch;
  const auto [name, call] = GetParam();
  undisturbed(12);
  const auto start = Clock::now();
  const auto outcome =
      cli::Process(training_job({"-n", "3", "--max-restarts", "1"}, scratch.path(), {std::string("fault=") + name}))
          .finish(60);
  EXPECT_LT(seconds_since(start), 30);  // 3 on an idle machine
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const std::string rank : {"0", "2"}) {
    EXPECT_THAT(outcome.err, ContainsRegex("\\[rank " + rank + "\\] .*#[0-9]+ " + call + " failed on rank " + rank +
                                           ", group world[^:]*: Rank 1 \\(pid [0-9]+ on [^)]*\\) has ended "));
  }
  EXPECT_THAT(outcome.err,
              HasSubstr("launch: rank 1 was killed by signal 9 (Killed). Restarting all 3 ranks (restart 1 of"));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] goes on from step 4\n")) << "what was saved before is there";
  EXPECT_THAT(outcome.err, Not(HasSubstr("damaged")));
  expect_same_bits(scratch.path(), 12);
  EXPECT_EQ(checkpoints(scratch.path()).front().substr(0, 5), "step-")
      << "nothing is left of the save that was cut off";
  expect_no_process_left(scratch.path());
}

INSTANTIATE_TEST_SUITE_P(In, KilledRank,
                         ::testing::Values(Point{"forward",
                                                 "all_gather Long\\[1\\]"},  // do all weights come from equal steps?
                                           Point{"backward", "(all_gather Long\\[1\\]|all_reduce Float\\[[0-9]+\\])"},
                                           Point{"all_reduce", "all_reduce Float\\[[0-9]+\\]"},
                                           Point{"save", "all_gather [A-Za-z]+\\[[0-9]+\\]"}),
                         [](const auto& point) { return std::string(point.param.name); });

TEST(KilledInSave, WithoutARestartTheJobEndsAndTheCheckpointBeforeIsWhole) {
  const cli::Scratch scratch;
  const auto outcome = cli::Process(training_job({"-n", "3"}, scratch.path(), {"fault=save"})).finish(60);
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_THAT(outcome.err, HasSubstr("bellows: rank 1 was killed by signal 9 (Killed)"));
  EXPECT_EQ(checkpoints(scratch.path()), (std::vector<std::string>{"step-000000000002", "step-000000000004"}));
  checkpoint::SavedCheckpoint(scratch / "step-000000000004").verify();
  expect_no_process_left(scratch.path());
}

TEST(StoppedRank, ShorterThanTheTimeoutTheRunGoesOnWithTheSameBits) {
  const int seconds = slow_tests() ? 60 : 2;
  const cli::Scratch scratch;
  cli::Process job(training_job(
      {"-n", "3"}, scratch.path(),
      {"fault=backward", "signal=" + std::to_string(SIGSTOP), "timeout_s=" + std::to_string(slow_tests() ? 90 : 20)}));
  const int stopped = wait_for_stop(job);
  ASSERT_GT(stopped, 0);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  EXPECT_TRUE(is_stopped(stopped));
  kill(stopped, SIGCONT);
  const auto outcome = job.finish(60);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] trained in "));
  expect_same_bits(scratch.path(), 12);
}

TEST(StoppedRank, LongerThanTheTimeoutItIsNamedAndTheJobGoesOnWithoutIt) {
  const int timeout_s = slow_tests() ? 60 : 3;
  const cli::Scratch scratch;
  cli::Process job(
      training_job({"-n", "3", "--max-restarts", "1"}, scratch.path(),
                   {"fault=backward", "signal=" + std::to_string(SIGSTOP), "timeout_s=" + std::to_string(timeout_s)}));
  const int stopped = wait_for_stop(job);
  ASSERT_GT(stopped, 0);
  const auto start = Clock::now();
  const auto outcome = job.finish(timeout_s + 60);
  EXPECT_LT(seconds_since(start), timeout_s + 30);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string words = "Rank 1 (pid " + std::to_string(stopped) + " on ";
  const std::string waits = "has been waiting for ";
  const size_t warning = outcome.err.find(waits);
  const size_t error = outcome.err.find("failed on rank 0, group world/gradients: " + words);
  ASSERT_NE(warning, std::string::npos) << outcome.err;
  EXPECT_LT(warning, error) << "said before the timeout ends the round";
  size_t digits = 0;
  EXPECT_GE(std::stod(outcome.err.substr(warning + waits.size()), &digits), timeout_s / 3);
  EXPECT_EQ(outcome.err.find(" s. " + words, warning), warning + waits.size() + digits);
  EXPECT_THAT(outcome.err.substr(warning),
              ContainsRegex("all_(gather Long|reduce Float).* is stopped \\(SIGSTOP or a debugger\\)"));
  expect_same_bits(scratch.path(), 12);
  expect_no_process_left(scratch.path());
}

}  // namespace bellows::testing
