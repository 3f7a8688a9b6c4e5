#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <regex>

#include "bellows/io/tensors/safetensors.h"
#include "tests/cli/process.h"

// The memory of processes whose shards and optimizer state are in files, and the files that they leave.
namespace bellows::train {

namespace {

constexpr int64_t layers = 16;

/// Weights of 64 MiB in fp32.
void save_weights(const std::string& path) {
  NamedTensors tensors;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const at::Tensor weight = at::arange(1024 * 1024, at::kFloat).add(layer).sin().mul(0.03).reshape({1024, 1024});
    tensors.emplace_back(std::to_string(layer) + ".weight", weight);
    tensors.emplace_back(std::to_string(layer) + ".bias", weight.select(0, 0).clone());
  }
  io::save_safetensors(path, tensors);
}

cli::Launch two_ranks(const std::string& weights, const std::string& folder) {
  return {.arguments = {"launch", "-n", "2", "--", BELLOWS_BIN_DIR "/offload_rank", weights, folder}};
}

struct Report {
  int64_t peak = 0, files = 0, resident = 0;
  std::string loss;
};

/// The report of rank 0.
Report report_of(const std::string& weights, const std::string& folder) {
  const cli::Outcome outcome = cli::Process(two_ranks(weights, folder)).finish(120);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::regex line("rank 0: peak (\\d+) MiB, files (\\d+) MiB, resident (\\d+) MiB, loss (\\S+)");
  std::smatch found;
  if (!std::regex_search(outcome.out, found, line)) {
    ADD_FAILURE() << outcome.out << outcome.err;
    return {};
  }
  return {std::stoll(found[1]), std::stoll(found[2]), std::stoll(found[3]), found[4]};
}

}  // namespace

// A rank has 32 MiB of shards, 32 MiB of gradients and 64 MiB of state.
TEST(OffloadMemory, IsBoundedByBucketsAndWindows) {
  const cli::Scratch scratch;
  save_weights(scratch / "weights.safetensors");
  std::filesystem::create_directory(scratch / "files");
  const Report memory = report_of(scratch / "weights.safetensors", "none");
  const Report files = report_of(scratch / "weights.safetensors", scratch / "files");
  std::printf("  in memory: peak %lld MiB; in files: peak %lld MiB\n", static_cast<long long>(memory.peak),
              static_cast<long long>(files.peak));
  EXPECT_EQ(files.loss, memory.loss);
  EXPECT_GE(memory.peak, 128);
  EXPECT_LE(files.peak, 64) << "at most ten buckets of 4 MiB, and windows";
  EXPECT_EQ(memory.files, 0);
  EXPECT_GE(files.files, 128);
  EXPECT_LE(files.files, 132);
  EXPECT_TRUE(std::filesystem::is_empty(scratch / "files"));
}

TEST(OffloadMemory, KilledRanksLeaveNoFiles) {
  const cli::Scratch scratch;
  save_weights(scratch / "weights.safetensors");
  std::filesystem::create_directory(scratch / "files");
  cli::Process process(two_ranks(scratch / "weights.safetensors", scratch / "files"));
  std::this_thread::sleep_for(std::chrono::milliseconds(900));
  process.signal(SIGKILL);
  process.finish();
  EXPECT_TRUE(std::filesystem::is_empty(scratch / "files"));
}

}  // namespace bellows::train
