#pragma once

#include <optional>
#include <string>

#include "bellows/checkpoint/async_saver.h"
#include "bellows/checkpoint/sharded_folder.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

/// The checkpoints of a run: files of one process, or folders that all ranks of a job write together. Each kind can
/// read checkpoints of the other. With several ranks, all calls are collective.
class RunFolder {
 public:
  /// Throws: like checkpoint::Folder and checkpoint::ShardedFolder; c10::ValueError if save_top_k is set with several
  ///         ranks
  RunFolder(const Recipe& recipe, const comm::Group* ranks);

  const std::string& path() const { return path_; }
  /// Path of the checkpoint after `step` steps.
  std::string path_of(int64_t step) const;
  /// Number of checkpoints.
  size_t count() const;
  /// Loads the newest undamaged checkpoint.
  /// Throws: c10::ValueError if there are checkpoints, but none can be read
  std::optional<checkpoint::State> newest();

  /// State of the run in addition to that of its loop.
  struct Notes {
    NamedTensors extra;
    std::string environment;
  };
  /// Saves a checkpoint, in the background unless the recipe turns this off.
  /// Throws: c10::Error if the state contains NaN or infinity; the error of the previous save
  void save(const TrainLoop& loop, const Notes& notes);
  /// Saves into `best/` if the score is among the best.
  void save_best(const TrainLoop& loop, const Notes& notes, double score);
  /// Waits until the last checkpoint is on disk. Throws: the error of the save in flight
  void wait();

 private:
  checkpoint::State state_of(const TrainLoop& loop, const Notes& notes) const;

  std::string path_;
  const bool async_;
  const int64_t save_top_k_;
  int rank_ = 0;
  std::optional<checkpoint::Folder> own_;            ///< with one process
  std::optional<checkpoint::ShardedFolder> shared_;  ///< with several ranks
  checkpoint::AsyncSaver saver_;
};

}  // namespace bellows::train
