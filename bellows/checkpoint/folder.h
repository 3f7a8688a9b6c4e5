#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/folder_lock.h"

namespace bellows::checkpoint {

/// The name of a checkpoint without suffix: "step-000000001200".
/// Throws: c10::ValueError if step is outside [0, 10^12)
std::string step_name(int64_t step);

/// Paths of the checkpoints in a folder, oldest first.
std::vector<std::string> list_checkpoints(const std::string& folder);

/// A checkpoint that is kept because of its score.
struct ScoredCheckpoint {
  std::string path;
  int64_t step = 0;
  double score = 0;
};

/// The checkpoints of a run: files `step-000000001200.pt` in one folder, of which the newest are kept, and in its
/// subfolder `best/` those with the highest scores. They are ordered by step, not by time. Checkpoint folders
/// `step-000000001200` of several ranks (sharded_folder.h) are included, so a single process can resume the run of
/// several ranks.
/// Threads: one owner; FolderLock excludes other processes and objects
class Folder {
 public:
  /// Creates the folder if it is missing, locks it, and deletes the leftovers of interrupted writes.
  /// Params: keep – number of checkpoints to keep, at least 1
  /// Throws: c10::ValueError if keep < 1; c10::Error if the folder cannot be created or written, or another run uses it
  explicit Folder(std::string path, int64_t keep = 3);

  /// Saves the state under State::step, then deletes the oldest checkpoints beyond `keep`. Checkpoints that newest()
  /// found damaged do not count. Returns the file's path.
  /// Throws: like checkpoint::save(); existing checkpoints stay
  std::string save(const State& state);

  /// Paths, oldest first, without those in `best/`.
  std::vector<std::string> list() const;

  /// Loads the newest undamaged checkpoint; returns nothing if there are none. Logs a warning for each damaged
  /// checkpoint that is skipped.
  /// Throws:   c10::ValueError if there are checkpoints, but none can be read
  std::optional<State> newest();

  /// Saves into `best/` if the state is among the `k` with the highest scores, then deletes those that no longer are.
  /// If scores are equal, the older one wins. A score that is not finite is never saved. For a loss, pass its negative.
  /// Returns:  the file's path, or nothing if the state is not among the best
  /// Throws:   c10::ValueError if k < 1; like checkpoint::save(); existing checkpoints stay
  std::optional<std::string> save_best(const State& state, double score, int64_t k);

  /// Whether save_best() would save a state of that step.
  bool is_among_best(int64_t step, double score, int64_t k) const;

  /// The checkpoints in `best/`, highest score first. `best/scores.json` has the scores.
  std::vector<ScoredCheckpoint> best() const;

  /// The path under which save() stores the state after `step` steps.
  /// Throws: c10::ValueError if step is outside [0, 10^12)
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
  std::set<std::string> damaged_;  ///< paths that newest() skipped
};

}  // namespace bellows::checkpoint
