#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "bellows/io/tensors/safetensors.h"
#include "bellows/train/trainer.h"
#include "tests/cli/process.h"
#include "tests/train/parallel/elastic_job.h"

namespace bellows::train {

/// The last step of a process.
struct RankStatus {
  pid_t pid;
  int64_t step = 0;
  int ranks = 0, rank = 0;
};

/// The processes of elastic_rank that have completed a step since they started, and that still run.
inline std::vector<RankStatus> trained_ranks(const std::string& folder) {
  std::vector<RankStatus> result;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("steps-") || name.ends_with(".part")) continue;
    RankStatus status{.pid = std::stoi(name.substr(6))};
    std::ifstream(entry.path()) >> status.step >> status.ranks >> status.rank;
    if (::kill(status.pid, 0) == 0) result.push_back(status);
  }
  return result;
}

/// Kills processes of elastic_rank, and removes their files, because the numbers of processes may be used again.
/// Returns: the number of processes that still existed
inline int kill_ranks(const std::vector<pid_t>& pids, const std::string& folder) {
  int killed = 0;
  for (const pid_t pid : pids) killed += ::kill(pid, SIGKILL) == 0;
  for (const pid_t pid : pids) std::filesystem::remove(folder + "/steps-" + std::to_string(pid));
  return killed;
}

/// The processes that a launcher started and whose command contains the word.
inline std::vector<pid_t> launched_processes(pid_t launcher, const std::string& word) {
  std::ifstream children(c10::str("/proc/", launcher, "/task/", launcher, "/children"));
  std::vector<pid_t> result;
  for (pid_t pid = 0; children >> pid;) {
    std::ifstream command(c10::str("/proc/", pid, "/cmdline"));
    const std::string words((std::istreambuf_iterator<char>(command)), {});
    if (words.find(word) != std::string::npos && words.find("launch") == std::string::npos) result.push_back(pid);
  }
  return result;
}

/// A job of elastic_rank, whose lost ranks are replaced.
inline cli::Launch elastic_launch(int ranks, int restarts, const std::string& folder, int64_t epochs,
                                  const std::vector<std::string>& settings = {}) {
  cli::Launch launch{.arguments = {"launch", "-n", std::to_string(ranks), "--max-restarts", std::to_string(restarts),
                                   "--replace-lost", "--", BELLOWS_BIN_DIR "/elastic_rank", folder,
                                   std::to_string(epochs)}};
  launch.arguments.insert(launch.arguments.end(), settings.begin(), settings.end());
  return launch;
}

/// The weights after the training of elastic_rank, in one process.
inline NamedTensors trained_alone(Recipe recipe, const std::string& folder) {
  recipe.run_folder = folder;
  Job job = elastic_job(recipe);
  const Model model = job.model;
  Trainer(recipe).fit(std::move(job));
  return model.state_dict();
}

inline void expect_close(const NamedTensors& got, const NamedTensors& expected) {
  std::map<std::string, at::Tensor> by_name(got.begin(), got.end());
  ASSERT_EQ(by_name.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(by_name.contains(name)) << name;
    const bool close = at::allclose(by_name.at(name), tensor, /*rtol=*/1e-8, /*atol=*/1e-10);
    EXPECT_TRUE(close) << name << " differs by " << (by_name.at(name) - tensor).abs().max().item<double>();
  }
}

/// Checks that a job of elastic_rank ended with the weights of one process.
inline void expect_trained_like_one_process(const cli::Outcome& outcome, const cli::Scratch& folder, int64_t epochs) {
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("steps " + std::to_string(8 * epochs)));
  expect_close(io::load_safetensors(folder / "weights.safetensors"),
               trained_alone(elastic_recipe(epochs), folder / "alone"));
}

/// The steps in a log, in the order of its rows.
inline std::vector<int64_t> logged_steps(const std::string& path) {
  std::ifstream file(path);
  std::vector<int64_t> steps;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) steps.push_back(std::stoll(line));
  return steps;
}

inline void expect_ascending(const std::vector<int64_t>& steps) {
  EXPECT_TRUE(std::adjacent_find(steps.begin(), steps.end(), std::greater_equal<>()) == steps.end());
}

}  // namespace bellows::train
