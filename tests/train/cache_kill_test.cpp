// The real command, killed while it computes a teacher's outputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "bellows/core/seed.h"
#include "bellows/system/file.h"
#include "tests/cli/process.h"

namespace bellows::train {

namespace {

std::vector<std::string> train_arguments(const std::string& model, const std::vector<std::string>& settings) {
  std::vector<std::string> result = {"train", "--data", cli::digits() + "/train-000.tar"};
  std::vector<std::string> all = settings;
  all.insert(all.end(), {"model=" + model, "epochs=1", "num_workers=0", "eval_split=none"});
  for (const std::string& item : all) result.insert(result.end(), {"--set", item});
  return result;
}

/// Whether a file of this folder is being written, or was left by a killed process.
bool has_temporary(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().string().find(".tmp-") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST(CacheKillTest, AFileIsWholeOrMissingAndTheNextRunComputesIt) {
  const cli::Scratch scratch;
  const std::string weights = scratch / "teacher.safetensors", run = scratch / "teacher";
  std::vector<std::string> teacher = train_arguments("digits_resnet", {});
  teacher.insert(teacher.end(), {"--out", run});
  ASSERT_EQ(cli::run_bellows(teacher).exit_code, 0);
  ASSERT_EQ(cli::run_bellows({"checkpoint", "export", run, weights}).exit_code, 0);
  const auto arguments = [&](const std::string& cache) {  // small batches: many writes
    return train_arguments(
        "mlp", {"teacher=digits_resnet", "teacher_weights=" + weights, "teacher_cache=" + cache, "batch_size=2"});
  };
  const std::string whole = scratch / "whole.safetensors", cache = scratch / "cache/outputs.safetensors";
  const cli::Outcome outcome = cli::run_bellows(arguments(whole));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string expected = read_text_file(whole);

  RandomStream random(1);
  for (int kill = 0; kill < 3; ++kill) {
    std::filesystem::remove(cache);
    cli::Process process({.arguments = arguments(cache)});
    for (int i = 0; i < 60'000 && !std::filesystem::exists(cache) && !has_temporary(scratch / "cache"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(100'000)));
    process.signal(SIGKILL);
    process.finish();
    const bool finished = std::filesystem::exists(cache);
    std::printf("kill %d: %s\n", kill,
                finished                           ? "finished"
                : has_temporary(scratch / "cache") ? "unfinished"
                                                   : "not begun");
    if (finished) {
      EXPECT_TRUE(read_text_file(cache) == expected) << "kill " << kill;
    }
  }
  std::filesystem::remove(cache);
  ASSERT_EQ(cli::run_bellows(arguments(cache)).exit_code, 0);
  EXPECT_TRUE(read_text_file(cache) == expected);
  EXPECT_FALSE(has_temporary(scratch / "cache")) << "a killed process's file was left";
}

}  // namespace bellows::train
