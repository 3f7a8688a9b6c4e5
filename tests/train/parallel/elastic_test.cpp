// Ranks that are lost and replaced while the others continue: 5 losses, 100 with script/test --slow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/cli/process.h"
#include "tests/support/slow_tests.h"
#include "tests/train/parallel/elastic_results.h"

namespace bellows::train {
namespace {

using ::testing::HasSubstr;

/// `bellows train` on the digits, whose lost ranks are replaced.
cli::Launch replaced_training(int ranks, const std::string& folder, const std::vector<std::string>& settings) {
  cli::Launch launch{.arguments = {"launch", "-n", std::to_string(ranks), "--max-restarts", "9", "--replace-lost", "--",
                                   BELLOWS_BIN_DIR "/bellows", "train", "--data", cli::digits() + "/train-000.tar",
                                   "--out", folder}};
  for (const char* setting : {"model=mlp", "image_size=8", "num_workers=1"})
    launch.arguments.insert(launch.arguments.end(), {"--set", setting});
  for (const std::string& setting : settings) launch.arguments.insert(launch.arguments.end(), {"--set", setting});
  return launch;
}

bool finished_three_epochs(const cli::Outcome& so_far) {
  return so_far.err.find("    3 ") != std::string::npos;
}

/// Kills ranks at random moments, but never the last one that has the state.
class Killer {
 public:
  Killer(std::string folder, int losses) : folder_(std::move(folder)), losses_(losses) {}
  /// Call it repeatedly.
  void look() {
    const auto now = std::chrono::steady_clock::now();
    if (done() || now < next_) return;
    next_ = now + std::chrono::milliseconds(std::uniform_int_distribution(50, 900)(random_));
    const std::vector<RankStatus> ranks = trained_ranks(folder_);
    if (ranks.size() < 2) return;
    const size_t victim = std::uniform_int_distribution<size_t>(0, ranks.size() - 1)(random_);
    killed_ += kill_ranks({ranks[victim].pid}, folder_);
  }
  bool done() const { return killed_ >= losses_; }

 private:
  const std::string folder_;
  const int losses_;
  int killed_ = 0;
  std::mt19937 random_{7};
  std::chrono::steady_clock::time_point next_;
};

/// Runs a job on `ranks` ranks, loses `losses` of them, and compares the weights with those of one process. Every step
/// uses all samples of its batch exactly once; otherwise, the weights would be others.
void expect_losses_change_no_result(int ranks, int losses, const std::vector<std::string>& settings = {}) {
  const int64_t epochs = 60 + 25 * losses;
  const cli::Scratch scratch;
  cli::Process process(elastic_launch(ranks, 1000, scratch.path(), epochs, settings));
  Killer killer(scratch.path(), losses);
  const auto poll = [&](const cli::Outcome&) {
    killer.look();
    return false;
  };
  std::ofstream(scratch / "go") << "1";
  process.wait_until(poll, 1200);
  expect_trained_like_one_process(process.finish(), scratch, epochs);
  EXPECT_TRUE(killer.done()) << "the run was too short";
  expect_ascending(logged_steps(scratch / "run/log.csv"));
}

TEST(ElasticRanks, LostReplicasChangeNoResult) {
  expect_losses_change_no_result(4, slow_tests() ? 100 : 5);
}

// Until the new process joins, one rank has all samples.
TEST(ElasticRanks, OneRankMayBeLeft) {
  expect_losses_change_no_result(2, 2);
}

// The steps are recorded and compiled again in each world.
TEST(ElasticRanks, LostReplicasOfCompiledTrainingChangeNoResult) {
  expect_losses_change_no_result(3, 3, {"compile=step"});
}

// A stop while a new process joins: the others save a checkpoint.
TEST(ElasticRanks, AStopWhileAProcessJoinsSavesACheckpoint) {
  const cli::Scratch scratch;
  cli::Process process(replaced_training(2, scratch / "run", {"epochs=100000", "save_steps=1000000"}));
  ASSERT_TRUE(process.wait_until(finished_three_epochs));
  const std::vector<pid_t> ranks = launched_processes(process.pid(), "train");
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks.back(), SIGKILL);
  const auto lost = [](const cli::Outcome& so_far) {
    return so_far.err.find("a new process takes its place") != std::string::npos;
  };
  ASSERT_TRUE(process.wait_until(lost));
  process.signal(SIGTERM);
  process.finish(60);
  bool saved = false;
  for (const auto& entry : std::filesystem::directory_iterator(scratch / "run"))
    saved |= entry.path().filename().string().starts_with("step-");
  EXPECT_TRUE(saved);
}

TEST(ElasticRanks, TooManyLossesEndTheJob) {
  const cli::Scratch scratch;
  cli::Process process(elastic_launch(2, 1, scratch.path(), 10000));
  std::ofstream(scratch / "go") << "1";
  Killer killer(scratch.path(), 2);
  const auto poll = [&](const cli::Outcome&) {
    killer.look();
    return false;
  };
  process.wait_until(poll, 240);
  const cli::Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 137) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("The other ranks continue, and a new process takes its place (1 of at most 1)"));
}

TEST(ElasticRanks, UnsupportedRecipesAreRefused) {
  const cli::Outcome outcome =
      cli::run_bellows({"launch", "-n", "2", "--max-restarts", "1", "--replace-lost", "--", BELLOWS_BIN_DIR "/bellows",
                        "train", "--data", cli::digits() + "/train-000.tar", "--set", "data_parallel=zero1"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("data_parallel = zero1 needs a second copy of each shard of the state"));
}

TEST(ElasticRanks, TheLauncherChecksItsOptions) {
  const cli::Outcome outcome = cli::run_bellows({"launch", "-n", "2", "--replace-lost", "--", "true"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--replace-lost needs --max-restarts"));
}

// The command itself: its ranks, its log and its result.
TEST(ElasticRanks, TheCommandContinues) {
  const cli::Scratch scratch;
  cli::Process process(replaced_training(3, scratch / "run", {"epochs=40"}));
  ASSERT_TRUE(process.wait_until(finished_three_epochs));
  const std::vector<pid_t> ranks = launched_processes(process.pid(), "train");
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks.front(), SIGKILL);  // rank 0, which writes the log
  const cli::Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("A rank was lost"));
  const std::vector<int64_t> steps = logged_steps(scratch / "run/log.csv");
  EXPECT_GT(steps.size(), 5u);
  expect_ascending(steps);
}

}  // namespace
}  // namespace bellows::train
