// Runs with the recipe key `reproducible_ranks` on 1, then 4, then 2 ranks, killed at random moments: 2 kills of one method
// on 1 and 4 ranks, or 6 of each method, also on 2 ranks, with script/test --slow. The weights at the end have the same SHA-256
// as those of one rank that was not killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "bellows/core/seed.h"
#include "tests/support/slow_tests.h"
#include "tests/train/parallel/kill_results.h"
#include "tests/train/parallel/short_texts.h"

namespace bellows::train {
namespace {

/// A BERT with dropout on short texts, or a ResNet on the digits, in fp32.
class ReproducibleRuns {
 public:
  ReproducibleRuns(std::string strategy, bool texts, uint64_t seed)
      : strategy_(std::move(strategy)), texts_(texts), random_(seed), short_texts_(scratch_) {}

  void train_whole() {
    const cli::Outcome outcome = cli::Process(launch("whole", 1)).finish(900);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    digest_ = sha256_of_weights(scratch_ / "whole");
  }

  /// Trains on 1, 4 and 2 ranks. False if the run ended before the last kill.
  /// Params: last_kills – on 2 ranks
  bool train_killed(int kills, int last_kills) {
    const std::string name = c10::str("run-", runs_++);
    for (const int ranks : {1, 4, 2}) {
      for (int kill = 0; kill < (ranks == 2 ? last_kills : kills); ++kill) {
        if (!train_until_killed(name, ranks)) return false;
      }
    }
    const int64_t saved = newest_step(scratch_ / name);
    const cli::Outcome outcome = cli::Process(launch(name, 2)).finish(900);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_GE(last_start_step(outcome.err), saved) << outcome.err;
    EXPECT_EQ(sha256_of_weights(scratch_ / name), digest_);
    return true;
  }

 private:
  /// Starts or resumes the run, and kills a rank after some checkpoints. False if the run ended before.
  bool train_until_killed(const std::string& name, int ranks) {
    const std::string folder = scratch_ / name;
    const int64_t saved = newest_step(folder);
    const int64_t wanted = saved + save_steps * (1 + static_cast<int64_t>(random_.below(5)));
    cli::Process process(launch(name, ranks));
    if (!process.wait_until([&](const cli::Outcome&) { return newest_step(folder) >= wanted; }, 300)) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(random_.below(20'000)));
    const pid_t victim = rank_process(folder, static_cast<int>(random_.below(static_cast<uint64_t>(ranks))));
    const bool killed = victim > 0 && ::kill(victim, SIGKILL) == 0;
    const cli::Outcome outcome = process.finish(300);
    if (!killed || outcome.exit_code == 0) return false;
    EXPECT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.err;
    EXPECT_GE(last_start_step(outcome.err), saved) << outcome.err;
    std::printf("  %s, %s: killed on %d ranks after the checkpoint of step %lld\n", strategy_.c_str(),
                texts_ ? "BERT" : "ResNet", ranks, static_cast<long long>(newest_step(folder)));
    return true;
  }

  cli::Launch launch(const std::string& name, int ranks) const {
    std::vector<std::string> recipe = {
        "reproducible_ranks=4", "batch_size=24", "data_parallel=" + strategy_,       "optimizer=adamw", "lr=0.005",
        "lr_schedule=cosine",   "num_workers=1", c10::str("save_steps=", save_steps)};
    std::string data = cli::digits() + "/train-000.tar";
    std::vector<std::string> more = {"model=digits_resnet", "image_size=8", "epochs=14", "augment=crop_flip"};
    if (texts_) {
      data = short_texts_.data();
      more = short_texts_.recipe();
      more.emplace_back("epochs=20");
    }
    recipe.insert(recipe.end(), more.begin(), more.end());
    std::vector<std::string> command = training(scratch_ / name, recipe, data);
    command.emplace_back("--resume");
    return launched_training({"-n", std::to_string(ranks)}, command);
  }

  static constexpr int64_t save_steps = 5;
  const std::string strategy_;
  const bool texts_;
  RandomStream random_;
  const cli::Scratch scratch_;
  const ShortTexts short_texts_;
  std::string digest_;
  int runs_ = 0;
};

TEST(ReproducibleKills, WeightsAreThoseOfOneRankThatWasNotKilled) {
  const uint64_t seed = printed_kill_seed();
  std::vector<std::pair<std::string, bool>> cases = {{"zero3", true}};
  if (slow_tests()) cases = {{"zero3", true}, {"zero2", true}, {"ddp", true}, {"zero3", false}, {"ddp", false}};
  uint64_t number = 0;
  for (const auto& [strategy, texts] : cases) {
    SCOPED_TRACE(c10::str(strategy, texts ? ", BERT" : ", ResNet"));
    ReproducibleRuns runs(strategy, texts, mix_seed(seed, number++));
    ASSERT_NO_FATAL_FAILURE(runs.train_whole());
    int attempts = 0;
    while (!runs.train_killed(slow_tests() ? 2 : 1, slow_tests() ? 2 : 0) && !HasFailure()) {
      ASSERT_LT(++attempts, 5) << "each run ended before the last kill";
    }
  }
}

}  // namespace
}  // namespace bellows::train
