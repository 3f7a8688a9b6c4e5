#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/checkpoint/checkpoint.h"

namespace bellows::checkpoint {

/// A run's checkpoints: files `step-000000001200.pt` in one folder, of which the newest few are kept.
/// Threads: one owner
class Folder {
 public:
  /// Makes the folder where it is missing and removes what an interrupted save left behind.
  /// Params: keep – how many stay, at least 1
  /// Throws: c10::ValueError – keep < 1; c10::Error – the folder cannot be made or written
  explicit Folder(std::string path, int64_t keep = 3);

  /// Saves under State::step, then removes the oldest beyond `keep`. Returns the file's path.
  /// Throws: as checkpoint::save(); what was there stays
  std::string save(const State& state);

  /// Paths, oldest first.
  std::vector<std::string> list() const;

  /// The newest one that is whole, or nothing where there are none. A warning names each damaged one that is passed
  /// over.
  /// Throws:   c10::ValueError – there are checkpoints, and none can be read
  std::optional<State> newest() const;

  /// Where save() puts the state after `step` steps.
  std::string path_of(int64_t step) const;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int64_t keep_;
};

}  // namespace bellows::checkpoint
