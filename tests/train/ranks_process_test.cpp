// The real command on several ranks, as launchers start it: the same result whoever starts it, and none lost to kill -9.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "bellows/core/seed.h"
#include "tests/support/slow_tests.h"
#include "tests/train/parallel/rank_processes.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

const std::vector<std::string> small = {"model=mlp",       "image_size=8", "epochs=4",           "save_steps=5",
                                        "optimizer=adamw", "lr=0.005",     "lr_schedule=cosine", "num_workers=1"};

void expect_same_model(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first;
}

}  // namespace

TEST(RanksProcess, TheSameResultWhoeverStartsThem) {
  const cli::Scratch scratch;
  const auto start = [&](const std::string& name, const std::string& launcher, const std::string& environment) {
    std::string command = environment + launcher + " " BELLOWS_BIN_DIR "/bellows";
    for (const std::string& word : training(scratch / name, small)) command += " '" + word + "'";
    command += " >" + scratch / (name + ".log") + " 2>&1";
    return std::system(command.c_str());
  };
  ASSERT_EQ(start("bellows", BELLOWS_BIN_DIR "/bellows launch -n 2 --", "OMP_NUM_THREADS=1 "), 0);
  ASSERT_EQ(start("mpirun", "mpirun --allow-run-as-root --oversubscribe -n 2", "OMP_NUM_THREADS=1 "), 0)
      << std::ifstream(scratch / "mpirun.log").rdbuf();
  expect_same_model(trained(scratch / "mpirun"), trained(scratch / "bellows"));
  const std::string torchrun = BELLOWS_SOURCE_DIR "/.deps/peers/bin/torchrun";
  if (!std::filesystem::exists(torchrun)) return;  // Python's launcher is there where the benchmarks' environment is
  ASSERT_EQ(start("torchrun", torchrun + " --standalone --no-python --nproc-per-node 2", "OMP_NUM_THREADS=1 "), 0);
  expect_same_model(trained(scratch / "torchrun"), trained(scratch / "bellows"));
}

TEST(RanksProcess, OneRankSpeaksForAll) {
  const cli::Scratch scratch;
  auto command = training(scratch / "run", small);
  command.insert(command.end(), {"--json", scratch / "result.json"});
  const cli::Outcome outcome = cli::Process(launched_training({"-n", "2"}, command)).finish();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err + outcome.out, testing::Not(HasSubstr("[rank 1]")));
  const auto result = nlohmann::json::parse(std::ifstream(scratch / "result.json"));
  EXPECT_EQ(result["epochs"].size(), 4u);
}

TEST(RanksProcess, FewerRanksGoOnFromTheLastCheckpoint) {
  const cli::Scratch scratch;
  auto command = training(scratch / "run", small);
  command.push_back("--resume");
  cli::Process process(launched_training({"-n", "3", "--max-restarts", "1", "--min-ranks", "2"}, command));
  ASSERT_TRUE(process.wait_until([&](const cli::Outcome& so_far) {
    return so_far.err.find("    1  ") != std::string::npos;
  })) << "the first epoch's row";
  const pid_t victim = rank_process(scratch / "run", 1);
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const cli::Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("resume: continuing from step"));
  EXPECT_THAT(outcome.err, HasSubstr("the original run had 3 ranks, and this run has 2"));
}

TEST(RanksProcess, AStopOfOneRankStopsAllAndSaysHowToGoOn) {
  const cli::Scratch scratch;
  std::vector<std::string> recipe = small;
  recipe.emplace_back("epochs=1000");
  cli::Process process(launched_training({"-n", "2", "--max-restarts", "3"}, training(scratch / "run", recipe)));
  ASSERT_TRUE(process.wait_until([](const auto& so_far) { return so_far.err.find("    1  ") != std::string::npos; }));
  const pid_t told = rank_process(scratch / "run", 1);
  ASSERT_GT(told, 0);
  kill(told, SIGTERM);
  const cli::Outcome outcome = process.finish(60);
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM) << outcome.err;
  EXPECT_THAT(outcome.err,
              testing::ContainsRegex("bellows: stopped on request: rank [01] ended with exit code 143\\."));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("Restarting")));
  EXPECT_THAT(outcome.out, HasSubstr("Resume with: bellows launch -n 2 -- bellows train --out " + scratch / "run"));
}

/// Kills one rank after the other of runs that go on until so many are gone, and compares with a run that was left alone.
void expect_kills_change_nothing(const std::vector<std::string>& settings, int ranks, int wanted,
                                 RandomStream& random) {
  const cli::Scratch scratch;
  std::vector<std::string> recipe = small;
  recipe.insert(recipe.end(), {"augment=crop_flip", "epochs=12"});
  recipe.insert(recipe.end(), settings.begin(), settings.end());
  const std::string count = std::to_string(ranks);
  const auto command = [&](const std::string& folder) {
    auto result = training(folder, recipe);
    result.push_back("--resume");
    return result;
  };
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(cli::Process(launched_training({"-n", count}, command(scratch / "whole"))).finish().exit_code, 0);
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - start;  // half of it is the start
  for (int kills = 0, run = 0; kills < wanted && !testing::Test::HasFailure(); ++run) {
    const std::string folder = scratch / c10::str("run-", run);
    cli::Process process(launched_training({"-n", count, "--max-restarts", "1000"}, command(folder)));
    bool going_on = true;
    while (going_on && kills < wanted) {
      going_on = !process.wait_until(
          [](const cli::Outcome& so_far) { return so_far.out.find("of training") != std::string::npos; },
          whole.count() * (0.4 + 0.6 * random.uniform()));
      const pid_t victim =
          going_on ? rank_process(folder, static_cast<int>(random.below(static_cast<uint64_t>(ranks)))) : 0;
      kills += victim > 0 && kill(victim, SIGKILL) == 0;
    }
    const cli::Outcome outcome = process.finish();
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, testing::Not(HasSubstr("damaged")));
    expect_same_model(trained(folder), trained(scratch / "whole"));
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr(".partial"))) << "a killed save's folder was left";
  }
}

struct KilledRanks {
  const char* name;
  std::vector<std::string> settings;
  int ranks, kills, slow_kills;  ///< kills in script/test, and with --slow
};

void PrintTo(const KilledRanks& setup, std::ostream* out) {
  *out << setup.name;
}

class KilledRanksTest : public testing::TestWithParam<KilledRanks> {};

/// Set BELLOWS_KILL_SEED to have the same moments again.
TEST_P(KilledRanksTest, EndWithTheBitsOfTheRunThatWasNotKilled) {
  const KilledRanks& setup = GetParam();
  const char* given = std::getenv("BELLOWS_KILL_SEED");
  RandomStream random(given ? std::strtoull(given, nullptr, 10) : std::random_device()());
  expect_kills_change_nothing(setup.settings, setup.ranks, slow_tests() ? setup.slow_kills : setup.kills, random);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, KilledRanksTest,
    testing::Values(KilledRanks{"Zero2", {"data_parallel=zero2"}, 2, 1, 50},
                    KilledRanks{"Zero3", {"data_parallel=zero3"}, 2, 2, 50},
                    KilledRanks{"Offloaded",
                                {"data_parallel=zero3", "bucket_mb=1", "offload_parameters=file", "offload_state=file",
                                 "offload_shard_folder=/tmp"},
                                2,
                                1,
                                50},
                    KilledRanks{"Tensor", {"mesh=tensor: 2", "tensor_plan=layers.0: column, layers.1: row"}, 2, 1, 50},
                    KilledRanks{"Ddp", {"data_parallel=ddp"}, 3, 1, 50},
                    KilledRanks{"Compiled", {"data_parallel=ddp", "compile=step"}, 2, 1, 40}),
    [](const auto& setup) { return std::string(setup.param.name); });

}  // namespace bellows::train
