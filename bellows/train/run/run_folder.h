#pragma once

#include <optional>
#include <string>

#include "bellows/checkpoint/async_saver.h"
#include "bellows/checkpoint/sharded_folder.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

/// Where a run keeps its checkpoints: files of one process, or folders that all ranks of a job write together. Either reads
/// what the other wrote. With several ranks every call is collective.
class RunFolder {
 public:
  /// Throws: as checkpoint::Folder, checkpoint::ShardedFolder; c10::ValueError – keep_best with several ranks
  RunFolder(const Recipe& recipe, const comm::Group* ranks);

  const std::string& path() const { return path_; }
  /// Where the checkpoint after so many steps lies.
  std::string path_of(int64_t step) const;
  /// How many checkpoints there are.
  size_t count() const;
  /// The newest one that is whole.
  /// Throws: c10::ValueError – there are checkpoints, and none can be read
  std::optional<checkpoint::State> newest();

  /// What a run adds to its loop's state.
  struct Notes {
    NamedTensors extra;
    std::string environment;
  };
  /// In the background, unless the recipe says no.
  /// Throws: c10::Error – NaN or infinity in the state; what the save before threw
  void save(const TrainLoop& loop, const Notes& notes);
  /// Saves into `best/` if the score is among the best.
  void save_best(const TrainLoop& loop, const Notes& notes, double score);
  /// Returns when the last checkpoint is on disk. Throws: what the save in flight threw
  void wait();

 private:
  checkpoint::State state_of(const TrainLoop& loop, const Notes& notes) const;

  std::string path_;
  const bool async_;
  const int64_t keep_best_;
  int rank_ = 0;
  std::optional<checkpoint::Folder> own_;            ///< of one process
  std::optional<checkpoint::ShardedFolder> shared_;  ///< of many
  checkpoint::AsyncSaver saver_;
};

}  // namespace bellows::train
