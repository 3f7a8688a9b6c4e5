#pragma once

#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "bellows/checkpoint/folder.h"
#include "bellows/checkpoint/sharded.h"

namespace bellows::checkpoint {

struct SavePlan;

/// The checkpoints of a job with several ranks. All ranks must be able to access the folder, which contains the newest
/// checkpoints as subfolders `step-000000001200`. It may also contain files of Folder, because a job may resume with
/// one rank or with several ranks. All calls except list() are collective. If one rank throws an exception, all ranks
/// throw it.
/// Cost:    save_async() needs memory for a copy of the data that this rank writes. The next save reuses this memory.
///          The caller waits for one exchange of descriptions and for the copy. If the previous save is still in
///          progress, it also waits for that save
/// Threads: not thread-safe. The object has separate connections, so training may use collectives of the group while
///          save_async() runs
class ShardedFolder {
 public:
  /// Rank 0 creates the folder if it does not exist, locks it, and deletes the incomplete files of interrupted writes.
  /// Params: keep – number of checkpoints to keep, at least 1
  /// Throws: like Folder; c10::ValueError if a rank cannot access the folder
  ShardedFolder(std::string path, const comm::Group& group, int64_t keep = 3);
  /// Waits for the save in progress. If it fails with an error that was not reported yet, the error is logged.
  ~ShardedFolder();
  ShardedFolder(const ShardedFolder&) = delete;
  ShardedFolder& operator=(const ShardedFolder&) = delete;

  /// Saves the state with save_sharded() as the checkpoint of ShardedState::step, then deletes the oldest checkpoints
  /// if there are more than `keep`. Returns the path of the new checkpoint.
  /// Throws: like save_sharded(). In this case, existing checkpoints are not deleted
  std::string save(const ShardedState& state);

  /// Like save(), but in the background. The state may change as soon as this call returns. At most one save is in
  /// progress at a time. The next save waits until the current save has finished.
  /// Throws: the error of the previous save. In this case, no new save starts
  void save_async(const ShardedState& state);

  /// Waits until the save in progress is on disk.
  /// Throws: the error of this save
  void wait();

  /// Fills the state, like load_sharded(), from the newest checkpoint that every rank can read. For each damaged
  /// checkpoint that is skipped, rank 0 logs a warning. Returns the path of the checkpoint, or nothing if there are no
  /// checkpoints. `prepare` must set the parts that depend on the checkpoint, such as ZeRO optimizer state.
  /// Throws: c10::ValueError if there are checkpoints, but none of them can be read, or if the state does not fit the
  ///         checkpoint
  std::optional<std::string> newest(ShardedState& state, const Prepare& prepare = {});
  /// Returns the path of the newest undamaged checkpoint. The ranks divide the verification of the checksums among
  /// themselves. Returns nothing if there are no checkpoints.
  /// Throws: c10::ValueError if there are checkpoints, but none of them can be read
  std::optional<std::string> newest();

  /// Returns the path under which save() stores the state after `step` steps.
  /// Throws: c10::ValueError if `step` is outside [0, 10^12)
  std::string path_of(int64_t step) const;

  /// Returns the paths of the checkpoints, oldest first.
  std::vector<std::string> list() const;

 private:
  std::optional<std::string> first_without_damage(const std::function<std::string(const std::string& path)>& damage_of);
  void write(SavePlan& plan, const std::string& trouble);

  std::string path_;
  comm::Group group_;
  std::optional<Folder> folder_;  ///< only on rank 0
  std::vector<at::Tensor> buffers_;
  std::future<void> in_flight_;  ///< last member, so that the save ends before the buffers that it reads are destroyed
};

}  // namespace bellows::checkpoint
