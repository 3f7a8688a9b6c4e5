#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "bellows/checkpoint/folder.h"
#include "bellows/checkpoint/saved_checkpoint.h"
#include "tests/cli/process.h"

/// Training on ranks that are processes of `bellows launch`.
namespace bellows::train {

/// `bellows train`, by default on the digits.
inline std::vector<std::string> training(const std::string& folder, const std::vector<std::string>& recipe,
                                         const std::string& data = cli::digits() + "/train-000.tar") {
  std::vector<std::string> result = {"train", "--data", data, "--out", folder};
  for (const std::string& item : recipe) result.insert(result.end(), {"--set", item});
  return result;
}

inline cli::Launch launched_training(std::vector<std::string> options, const std::vector<std::string>& command) {
  options.insert(options.begin(), "launch");
  options.insert(options.end(), {"--", BELLOWS_BIN_DIR "/bellows"});
  options.insert(options.end(), command.begin(), command.end());
  return {.arguments = std::move(options)};
}

/// The model of the newest checkpoint.
inline NamedTensors trained(const std::string& folder) {
  return checkpoint::SavedCheckpoint(checkpoint::list_checkpoints(folder).back()).state().model;
}

/// Process of a rank that trains in this folder; 0: none.
inline pid_t rank_process(const std::string& folder, int rank) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto content = [&](const char* file) {
      std::ifstream stream(entry.path() / file, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(stream), {});
    };
    const std::string command = content("cmdline");
    const bool trains =
        command.substr(command.find('\0') + 1).starts_with("train") && command.find(folder) != std::string::npos;
    if (trains &&
        (std::string(1, '\0') + content("environ")).find(c10::str('\0', "RANK=", rank, '\0')) != std::string::npos)
      return std::stoi(name);
  }
  return 0;
}

}  // namespace bellows::train
