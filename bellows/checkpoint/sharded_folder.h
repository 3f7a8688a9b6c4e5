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

/// The checkpoints of a job with several ranks: folders `step-000000001200` in one folder that all ranks can access, of
/// which the newest are kept. The folder may also contain files of Folder, because the number of ranks may change
/// between one and many. All calls except list() are collective; an exception on one rank is thrown on all.
/// Cost:    save_async(): memory for a copy of the data that this rank writes, which the next save reuses. The caller
///          waits for one exchange of descriptions, for the copy, and for the previous save if that is still in flight
/// Threads: one owner. It has its own connections, so training may use collectives of the group while save_async() runs
class ShardedFolder {
 public:
  /// Rank 0 creates the folder if it is missing, locks it, and deletes the leftovers of interrupted writes.
  /// Params: keep – number of checkpoints to keep, at least 1
  /// Throws: like Folder; c10::ValueError if a rank cannot access the folder
  ShardedFolder(std::string path, const comm::Group& group, int64_t keep = 3);
  /// Waits for the save in flight. Logs an error that was not reported yet.
  ~ShardedFolder();
  ShardedFolder(const ShardedFolder&) = delete;
  ShardedFolder& operator=(const ShardedFolder&) = delete;

  /// Calls save_sharded() under ShardedState::step, then deletes the oldest checkpoints beyond `keep`. Returns the
  /// folder's path.
  /// Throws: like save_sharded(); existing checkpoints stay
  std::string save(const ShardedState& state);

  /// Like save(), in the background. The state may change as soon as this call returns. At most one save is in flight;
  /// the next one waits for it.
  /// Throws: the error of the previous save; then no new save is started
  void save_async(const ShardedState& state);

  /// Waits until the save in flight is on disk.
  /// Throws: the error of the save in flight
  void wait();

  /// Fills the state like load_sharded() from the newest checkpoint that every rank can read. Rank 0 logs a warning for
  /// each damaged checkpoint that is skipped. Returns its path, or nothing if there are none.
  /// Throws: c10::ValueError if there are checkpoints, but none can be read, or if the state does not fit the
  ///         checkpoint
  std::optional<std::string> newest(ShardedState& state, const Prepare& prepare = {});
  /// Finds the newest undamaged checkpoint. The ranks divide the verification of the checksums.
  std::optional<std::string> newest();

  /// The path under which save() stores the state after `step` steps.
  /// Throws: c10::ValueError if step is outside [0, 10^12)
  std::string path_of(int64_t step) const;

  /// Paths, oldest first.
  std::vector<std::string> list() const;

 private:
  std::optional<std::string> first_without_damage(const std::function<std::string(const std::string& path)>& damage_of);
  void write(SavePlan& plan, const std::string& trouble);

  std::string path_;
  comm::Group group_;
  std::optional<Folder> folder_;  ///< only on rank 0
  std::vector<at::Tensor> buffers_;
  std::future<void> in_flight_;  ///< last member, so that it ends before the buffers that it reads
};

}  // namespace bellows::checkpoint
