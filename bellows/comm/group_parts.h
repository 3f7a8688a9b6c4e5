#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/connections.h"
#include "bellows/comm/group.h"
#include "bellows/comm/rendezvous/store.h"
#include "bellows/comm/watchdog.h"

namespace bellows::comm {

/// Makes the names of groups unique within a world.
/// Threads: thread-safe
class GroupNames {
 public:
  /// Returns the name, with a number if it was used before.
  std::string unique(const std::string& name) {
    const MutexLock lock(mutex_);
    const int before = used_[name]++;
    return before == 0 ? name : name + "#" + std::to_string(before + 1);
  }

 private:
  Mutex mutex_;
  std::map<std::string, int> used_ BELLOWS_GUARDED_BY(mutex_);
};

/// The settings from which a group is created.
struct GroupParts {
  std::string name;
  std::vector<int> ranks;
  int rank = 0;          ///< index of this process in `ranks`
  std::string address;   ///< address of this machine for the sockets of Gloo
  bool nccl = false;     ///< for CUDA tensors, use NCCL in addition to Gloo
  double timeout_s = 0;  ///< timeout of a collective in seconds
  /// Time in which the ranks must connect; 0: `timeout_s`.
  double connect_timeout_s = 0;
  std::shared_ptr<Connections> connections = {};                       ///< records the sockets; null: does not
  std::shared_ptr<GroupNames> names = std::make_shared<GroupNames>();  ///< of all groups of the world
};

/// Connects the ranks. Collective. A group of one rank needs no connection.
Group make_group(const GroupParts& parts, const Store& store, const std::shared_ptr<Watchdog>& watchdog);

/// Returns whether make_group() supports NCCL.
bool has_nccl();

}  // namespace bellows::comm
