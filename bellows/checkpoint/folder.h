#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/folder_lock.h"

namespace bellows::checkpoint {

/// Returns the name of a checkpoint without suffix, such as "step-000000001200".
/// Throws: c10::ValueError if `step` is outside [0, 10^12)
std::string step_name(int64_t step);

/// Returns the paths of the checkpoints in a folder, oldest first.
std::vector<std::string> list_checkpoints(const std::string& folder);

/// A checkpoint that is kept because of its high score.
struct ScoredCheckpoint {
  std::string path;
  int64_t step = 0;
  double score = 0;
};

/// The checkpoints of a run. The folder contains the newest checkpoints as files `step-000000001200.pt`. Its subfolder
/// `best/` contains the checkpoints with the highest scores. Checkpoints are ordered by step, not by time. Checkpoint
/// folders `step-000000001200` that several ranks wrote (sharded_folder.h) are included, so a single process can resume
/// a run of several ranks.
/// Threads: not thread-safe. A FolderLock prevents other processes and objects from using the folder at the same time
class Folder {
 public:
  /// Creates the folder if it does not exist, locks it, and deletes the incomplete files of interrupted writes.
  /// Params: keep – number of checkpoints to keep, at least 1
  /// Throws: c10::ValueError if `keep` is below 1. c10::Error if the folder cannot be created or written, or if another
  ///         run uses it
  explicit Folder(std::string path, int64_t keep = 3);

  /// Saves the state as the checkpoint of State::step, then deletes the oldest checkpoints if there are more than
  /// `keep`. Checkpoints that newest() found damaged are not counted. Returns the path of the file.
  /// Throws: like checkpoint::save(). In this case, existing checkpoints are not deleted
  std::string save(const State& state);

  /// Returns the paths of the checkpoints, oldest first, without those in `best/`.
  std::vector<std::string> list() const;

  /// Loads the newest undamaged checkpoint. Returns nothing if there are no checkpoints. For each damaged checkpoint
  /// that is skipped, a warning is logged.
  /// Throws: c10::ValueError if there are checkpoints, but none of them can be read
  std::optional<State> newest();

  /// Saves the state into `best/` if it is among the `k` states with the highest scores. Checkpoints that are then no
  /// longer among the best are deleted. If scores are equal, the checkpoint of the earlier step ranks higher. A state
  /// whose score is not finite is never saved. If the score is a loss, pass its negative.
  /// Returns: the path of the file, or nothing if the state is not among the best
  /// Throws:  c10::ValueError if `k` is below 1. Other exceptions are those of checkpoint::save(); existing checkpoints
  ///          are then not deleted
  std::optional<std::string> save_best(const State& state, double score, int64_t k);

  /// Returns whether save_best() would save a state of step `step` with this score.
  bool is_among_best(int64_t step, double score, int64_t k) const;

  /// Returns the checkpoints in `best/`, highest score first. The scores are stored in `best/scores.json`.
  std::vector<ScoredCheckpoint> best() const;

  /// Returns the path under which save() stores the state after `step` steps.
  /// Throws: c10::ValueError if `step` is outside [0, 10^12)
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
  std::set<std::string> damaged_;  ///< paths of damaged checkpoints that newest() skipped
};

}  // namespace bellows::checkpoint
