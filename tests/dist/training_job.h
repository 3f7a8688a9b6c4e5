#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bellows/checkpoint/saved_checkpoint.h"
#include "tests/cli/process.h"
#include "tests/support/slow_tests.h"

/// Jobs of training_rank under `bellows launch`.
namespace bellows::testing {

inline const std::string training_rank = BELLOWS_BIN_DIR "/training_rank";

/// `bellows launch OPTIONS -- training_rank FOLDER SETTINGS`, the processes known by TEST_JOB=FOLDER.
inline cli::Launch training_job(std::vector<std::string> options, const std::string& folder,
                                const std::vector<std::string>& settings) {
  options.insert(options.begin(), "launch");
  options.insert(options.end(), {"--", training_rank, folder});
  options.insert(options.end(), settings.begin(), settings.end());
  return {.arguments = std::move(options), .environment = {"TEST_JOB=" + folder}};
}

/// Names of the checkpoints, oldest first.
inline std::vector<std::string> checkpoints(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::erase_if(names, [](const std::string& name) { return name == ".lock"; });
  std::sort(names.begin(), names.end());
  return names;
}

/// Weights and momentum of the newest checkpoint, of which every byte is verified.
inline NamedTensors trained(const std::string& folder) {
  checkpoint::State state = checkpoint::SavedCheckpoint(folder + "/" + checkpoints(folder).back()).state();
  state.model.insert(state.model.end(), state.optimizer.begin(), state.optimizer.end());
  return state.model;
}

/// How the ranks exchange tensors. The order of sums differs.
enum class Exchange { shared_memory, sockets };

/// What three ranks have after so many steps that nothing disturbs.
inline const NamedTensors& undisturbed(int steps, Exchange exchange = Exchange::shared_memory) {
  static std::map<std::pair<int, Exchange>, NamedTensors> known;
  if (const auto found = known.find({steps, exchange}); found != known.end()) return found->second;
  const cli::Scratch scratch;
  cli::Launch job = training_job({"-n", "3"}, scratch.path(), {"steps=" + std::to_string(steps)});
  if (exchange == Exchange::sockets) job.environment.push_back("BELLOWS_SHARED_MEMORY=0");
  const auto outcome = cli::Process(job).finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return known[{steps, exchange}] = trained(scratch.path());
}

inline void expect_same_bits(const std::string& folder, int steps, Exchange exchange = Exchange::shared_memory) {
  const NamedTensors &expected = undisturbed(steps, exchange), got = trained(folder);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].second.equal(expected[i].second)) << got[i].first;
}

/// Processes of the job that are left, on this machine or in a namespace of it.
inline std::vector<int> processes_of(const std::string& folder) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    const std::string environment = std::string(1, '\0') + std::string(std::istreambuf_iterator<char>(file), {});
    if (environment.find('\0' + ("TEST_JOB=" + folder) + '\0') != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

/// A process that is killed may take a moment to be gone.
inline void expect_no_process_left(const std::string& folder) {
  for (int i = 0; i < 100 && !processes_of(folder).empty(); ++i) usleep(20'000);
  EXPECT_EQ(processes_of(folder), std::vector<int>());
}

}  // namespace bellows::testing
