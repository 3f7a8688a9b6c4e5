// Ranks in processes, killed at random moments, with each way to train on several ranks: 4 kills of ranks with complete
// models or shards, and 3 of ranks with parts of a model or of its sequences. With script/test --slow: 60 and 40. No start
// after a kill loses a complete checkpoint, and the weights at the end have the same SHA-256 as those of a run that was not
// killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "bellows/core/seed.h"
#include "tests/support/slow_tests.h"
#include "tests/train/parallel/kill_results.h"
#include "tests/train/parallel/short_texts.h"

namespace bellows::train {
namespace {

struct SweepMethod {
  const char* name;
  std::vector<std::string> settings;
  bool short_sweep;  ///< also without --slow
  int ranks = 4;
  bool texts = false;  ///< trains a BERT with dropout on short texts
};

const std::vector<SweepMethod>& sweep_methods() {
  static const std::vector<SweepMethod> methods = {
      {"ddp", {"data_parallel=ddp"}, false},
      {"zero1", {"data_parallel=zero1"}, false},
      {"zero2", {"data_parallel=zero2"}, false},
      {"zero3", {"data_parallel=zero3"}, false},
      {"zero3 without resharding", {"data_parallel=zero3", "reshard_after_forward=false"}, false},
      {"hybrid", {"data_parallel=zero3", "mesh={data: 2, shard: 2}"}, true},
      {"zero1 with updates in backward",
       {"data_parallel=zero1", "mesh={data: 2, shard: 2}", "optimizer_in_backward=true"},
       false},
      {"zero3 in bf16", {"data_parallel=zero3", "precision=bf16"}, false},
      {"compiled ddp", {"data_parallel=ddp", "compile=step"}, false}};
  return methods;
}

/// Methods whose ranks hold parts of the model, or divide sequences.
const std::vector<SweepMethod>& divided_methods() {
  static const std::vector<SweepMethod> methods = {
      {"tensor", {"mesh={tensor: 2}"}, true, 2, true},
      {"data and tensor", {"mesh={data: 2, tensor: 2}"}, false, 4, true},
      {"pipeline", {"mesh={pipeline: 2}"}, true, 2, true},
      {"data and pipeline", {"mesh={data: 2, pipeline: 2}"}, false, 4, true},
      {"pipeline and tensor", {"mesh={pipeline: 2, tensor: 2}"}, false, 4, true},
      {"context", {"mesh={context: 2}"}, true, 2, true},
      {"data and context", {"mesh={data: 2, context: 2}"}, false, 4, true},
      {"zero3 and tensor", {"mesh={data: 2, tensor: 2}", "data_parallel=zero3"}, false, 4, true},
      {"zero3 and context", {"mesh={context: 2}", "data_parallel=zero3"}, false, 2, true},
      {"zero2 and pipeline", {"mesh={data: 2, pipeline: 2}", "data_parallel=zero2"}, false, 4, true},
      {"zero3 and pipeline", {"mesh={data: 2, pipeline: 2}", "data_parallel=zero3"}, true, 4, true},
      {"zero1, context and tensor", {"mesh={context: 2, tensor: 2}", "data_parallel=zero1"}, false, 4, true},
      {"zero2, pipeline and context", {"mesh={pipeline: 2, context: 2}", "data_parallel=zero2"}, false, 4, true}};
  return methods;
}

/// Runs of one method, and the kills among their ranks.
class KillSweep {
 public:
  KillSweep(const SweepMethod& method, uint64_t seed) : method_(method), random_(seed), texts_(scratch_) {}

  /// Trains without kills. All later runs must end with the same weights.
  void train_whole() {
    const auto start = std::chrono::steady_clock::now();
    const cli::Outcome outcome = cli::Process(launch("whole", {})).finish(900);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    digest_ = sha256_of_weights(scratch_ / "whole");
  }

  /// Trains once, and kills ranks until so many were killed or the run ends. Returns the number of kills.
  int train_killed(int most) {
    const std::string name = c10::str("run-", runs_++), folder = scratch_ / name;
    cli::Process process(launch(name, {"--max-restarts", "1000"}));
    int kills = 0;
    std::vector<int64_t> newest = {0};  // checkpoints before each start
    while (kills < most && wait_for_moment(process, folder, kills == 0)) {
      const pid_t victim = rank_process(folder, static_cast<int>(random_.below(static_cast<uint64_t>(method_.ranks))));
      const int64_t saved = newest_step(folder);
      if (victim <= 0 || ::kill(victim, SIGKILL) != 0) continue;
      ++kills;
      note_restart(process, saved, newest);
    }
    const cli::Outcome outcome = process.finish(900);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, testing::Not(testing::HasSubstr("damaged")));
    expect_no_checkpoint_lost(outcome.err, newest);
    EXPECT_EQ(sha256_of_weights(folder), digest_);
    if (kills == 0) seconds_ *= 0.7;  // this run was faster, for example because it found compiled kernels
    std::printf("  %s: %d kills, the last one after the checkpoint of step %lld, SHA-256 %.16s…\n", method_.name, kills,
                static_cast<long long>(newest.back()), digest_.c_str());
    std::fflush(stdout);
    return kills;
  }

 private:
  static bool ended(const cli::Outcome& so_far) { return so_far.out.find("of training") != std::string::npos; }

  /// Waits for the random moment of a kill. The first kill of a run comes after a checkpoint, which must not be lost.
  /// Returns: false if the run ends before
  bool wait_for_moment(cli::Process& process, const std::string& folder, bool first) {
    if (first) {
      const auto saved = [&](const cli::Outcome& so_far) { return ended(so_far) || newest_step(folder) > 0; };
      EXPECT_TRUE(process.wait_until(saved, 300)) << "no checkpoint";
    }
    const double least = first ? 0 : 0.35, range = first ? 0.3 : 0.6;
    return !process.wait_until(ended, seconds_ * (least + range * random_.uniform()));
  }

  /// Waits until the launcher restarts the ranks, and notes the step of the newest checkpoint before.
  static void note_restart(cli::Process& process, int64_t saved, std::vector<int64_t>& newest) {
    size_t restarts = 0;
    const auto restarted = [&](const cli::Outcome& so_far) {
      restarts = restarts_in(so_far.err);
      return restarts >= newest.size() || ended(so_far);
    };
    process.wait_until(restarted, 120);
    newest.resize(std::max(newest.size(), restarts + 1), saved);
  }

  cli::Launch launch(const std::string& name, std::vector<std::string> options) const {
    std::vector<std::string> recipe = method_.texts ? texts_.recipe() : std::vector<std::string>{"model=mlp"};
    for (const char* setting : {"optimizer=adamw", "lr=0.005", "lr_schedule=cosine", "num_workers=1", "save_steps=5"})
      recipe.emplace_back(setting);
    if (method_.texts)
      recipe.insert(recipe.end(), {"epochs=10", "batch_size=24", "gradient_accumulation_steps=2"});
    else
      recipe.insert(recipe.end(), {"epochs=10", "image_size=8", "augment=crop_flip"});
    recipe.insert(recipe.end(), method_.settings.begin(), method_.settings.end());
    std::vector<std::string> command =
        method_.texts ? training(scratch_ / name, recipe, texts_.data()) : training(scratch_ / name, recipe);
    command.emplace_back("--resume");
    options.insert(options.begin(), {"-n", std::to_string(method_.ranks)});
    return launched_training(options, command);
  }

  const SweepMethod& method_;
  RandomStream random_;
  const cli::Scratch scratch_;
  const ShortTexts texts_;
  double seconds_ = 0;  ///< of the run without kills; about half of it is the start
  std::string digest_;
  int runs_ = 0;
};

/// Divides the kills among the methods.
void kill_with_each_method(const std::vector<SweepMethod>& methods, int kills_in_all) {
  const uint64_t seed = printed_kill_seed();
  int wanted = kills_in_all, left = 0;
  for (const SweepMethod& method : methods) left += slow_tests() || method.short_sweep;
  for (const SweepMethod& method : methods) {
    if (!slow_tests() && !method.short_sweep) continue;
    SCOPED_TRACE(method.name);
    KillSweep sweep(method, mix_seed(seed, static_cast<uint64_t>(left)));
    ASSERT_NO_FATAL_FAILURE(sweep.train_whole());
    int kills = (wanted + left - 1) / left;  // the rest, divided over the methods that are left
    wanted -= kills;
    --left;
    while (kills > 0 && !testing::Test::HasFailure()) kills -= sweep.train_killed(kills);
  }
}

TEST(KillSweepTest, EveryMethodEndsWithTheSameWeights) {
  kill_with_each_method(sweep_methods(), slow_tests() ? 60 : 4);
}

TEST(KillSweepTest, DividedModelsEndWithTheSameWeights) {
  kill_with_each_method(divided_methods(), slow_tests() ? 40 : 3);
}

}  // namespace
}  // namespace bellows::train
