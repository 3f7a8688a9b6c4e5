#pragma once

#include <optional>
#include <string>

#include "bellows/checkpoint/async_saver.h"
#include "bellows/checkpoint/sharded_folder.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

/// The checkpoints of a run. A single process writes files. Several ranks write folders together. Files and folders can
/// be read in both cases. With several ranks, all calls are collective.
class RunFolder {
 public:
  /// Throws: like checkpoint::Folder and checkpoint::ShardedFolder; c10::ValueError if there are several ranks and
  ///         save_top_k is set
  RunFolder(const Recipe& recipe, const comm::Group* ranks);

  const std::string& path() const { return path_; }
  /// Returns the path of the checkpoint after `step` steps.
  std::string path_of(int64_t step) const;
  /// Returns the number of checkpoints.
  size_t count() const;
  /// Loads the newest undamaged checkpoint. Returns nothing if there are no checkpoints.
  /// Throws: c10::ValueError if there are checkpoints but none can be read
  std::optional<checkpoint::State> newest();

  /// State of the run that is saved in addition to the state of its loop.
  struct Notes {
    NamedTensors extra;
    std::string environment;
  };
  /// Saves a checkpoint. Saving runs in the background unless the recipe turns this off.
  /// Throws: c10::Error if the state contains NaN or infinity, or if the previous save failed
  void save(const TrainLoop& loop, const Notes& notes);
  /// Saves a checkpoint in `best/` if the score is among the best save_top_k scores.
  void save_best(const TrainLoop& loop, const Notes& notes, double score);
  /// Waits until the last checkpoint is on disk.
  /// Throws: the exception of the save in progress
  void wait();

 private:
  checkpoint::State state_of(const TrainLoop& loop, const Notes& notes) const;

  std::string path_;
  const bool async_;
  const int64_t save_top_k_;
  int rank_ = 0;
  std::optional<checkpoint::Folder> own_;            ///< if there is one process
  std::optional<checkpoint::ShardedFolder> shared_;  ///< if there are several ranks
  checkpoint::AsyncSaver saver_;
};

}  // namespace bellows::train
