#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/folder_lock.h"

namespace bellows::checkpoint {

/// One of the checkpoints that a run keeps for what they score.
struct ScoredCheckpoint {
  std::string path;
  int64_t step = 0;
  double score = 0;
};

/// A run's checkpoints: files `step-000000001200.pt` in one folder, of which the newest few are kept, and in its folder
/// `best/` those with the highest scores. Step counts give the order, never clocks. Folders `step-000000001200` of many
/// ranks (sharded_folder.h) are among them: one process goes on from what many have saved.
/// Threads: one owner; other processes and other objects are kept out by FolderLock
class Folder {
 public:
  /// Makes the folder where it is missing, locks it, and removes what interrupted writes left behind.
  /// Params: keep – how many stay, at least 1
  /// Throws: c10::ValueError – keep < 1; c10::Error – the folder cannot be made or written; another run works in it
  explicit Folder(std::string path, int64_t keep = 3);

  /// Saves under State::step, then removes the oldest beyond `keep`; those that newest() found damaged do not count.
  /// Returns the file's path.
  /// Throws: as checkpoint::save(); what was there stays
  std::string save(const State& state);

  /// Paths, oldest first, without those in `best/`.
  std::vector<std::string> list() const;

  /// The newest one that is whole, or nothing where there are none. A warning names each damaged one that is passed
  /// over.
  /// Throws:   c10::ValueError – there are checkpoints, and none can be read
  std::optional<State> newest();

  /// Saves into `best/` if the state is among the `k` with the highest scores, then removes what no longer is. The
  /// older one wins a tie; a score that is not finite never gets in. For a loss, give its negative.
  /// Returns:  the file's path, or nothing if it was not among them
  /// Throws:   c10::ValueError – k < 1; as checkpoint::save(); what was there stays
  std::optional<std::string> save_best(const State& state, double score, int64_t k);

  /// True if save_best() would save a state of that step.
  bool is_among_best(int64_t step, double score, int64_t k) const;

  /// What `best/` holds, highest score first. Scores stand in `best/scores.json`.
  std::vector<ScoredCheckpoint> best() const;

  /// Where save() puts the state after `step` steps.
  /// Throws: c10::ValueError – step outside [0, 10^12)
  std::string path_of(int64_t step) const;

  const std::string& path() const { return path_; }

 private:
  friend class ShardedFolder;
  std::string best_folder() const { return path_ + "/best"; }
  void remove_oldest(const std::string& just_saved) const;
  void write_scores(const std::vector<ScoredCheckpoint>& ranking) const;

  std::string path_;
  int64_t keep_;
  std::optional<FolderLock> lock_;
  std::set<std::string> damaged_;  ///< paths that newest() passed over
};

}  // namespace bellows::checkpoint
