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

/// The checkpoints of a job of many ranks: folders `step-000000001200` in one folder that all ranks see, of which the
/// newest few are kept. Files of Folder may lie among them: a job may grow from one process to many, and shrink. All calls
/// but list() are collective; what one rank throws, all throw.
/// Cost:    save_async(): memory for one copy of what this rank writes, used again by the next; the caller's time is that
///          of one exchange of what the ranks hold, of the copy, and of the wait where the disk is slower than the saves
/// Threads: one owner. What the ranks exchange goes over connections of its own, so training may go on with collectives of
///          the group while save_async() works
class ShardedFolder {
 public:
  /// Rank 0 makes the folder where it is missing, locks it, and removes what interrupted writes left behind.
  /// Params: keep – how many stay, at least 1
  /// Throws: as Folder; c10::ValueError – a rank does not see the folder
  ShardedFolder(std::string path, const comm::Group& group, int64_t keep = 3);
  /// Waits. An error that nobody asked for is logged.
  ~ShardedFolder();
  ShardedFolder(const ShardedFolder&) = delete;
  ShardedFolder& operator=(const ShardedFolder&) = delete;

  /// save_sharded() under ShardedState::step, then removes the oldest beyond `keep`. Returns the folder's path.
  /// Throws: as save_sharded(); what was there stays
  std::string save(const ShardedState& state);

  /// The same in the background. The state may change as soon as this returns. At most one save is in flight; the next
  /// one waits for it.
  /// Throws: what the save before threw in the background; then nothing is begun
  void save_async(const ShardedState& state);

  /// Returns when nothing is in flight: the last checkpoint is on disk.
  /// Throws: what the save in flight threw
  void wait();

  /// Fills the state as load_sharded() does from the newest checkpoint of which every rank can read what it needs. A
  /// warning of rank 0 names each damaged one that is passed over. Returns its path, or nothing where there are none.
  /// Throws: c10::ValueError – there are checkpoints, and none can be read; a state of another kind
  std::optional<std::string> newest(ShardedState& state, const Prepare& prepare = {});
  /// The newest that is whole; the ranks share the work of comparing all checksums.
  std::optional<std::string> newest();

  /// Where save() puts the state after `step` steps.
  /// Throws: c10::ValueError – step outside [0, 10^12)
  std::string path_of(int64_t step) const;

  /// Paths, oldest first.
  std::vector<std::string> list() const;

 private:
  std::optional<std::string> first_without_damage(const std::function<std::string(const std::string& path)>& damage_of);
  void write(SavePlan& plan, const std::string& trouble);

  std::string path_;
  comm::Group group_;
  std::optional<Folder> folder_;  ///< rank 0's
  std::vector<at::Tensor> buffers_;
  std::future<void> in_flight_;  ///< last: it ends before what it reads
};

}  // namespace bellows::checkpoint
