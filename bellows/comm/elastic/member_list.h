#pragma once

#include <vector>

#include "bellows/comm/elastic/membership.h"
#include "bellows/comm/rendezvous/store.h"

namespace bellows::comm {

/// The launcher's list of the processes that take part in a job (struct Membership). It publishes each change in the
/// store.
/// Threads: not thread-safe
class MemberList {
 public:
  /// Publishes generation 0 with the IDs 0 to `count` - 1.
  MemberList(Store job, int count);

  bool contains(int id) const { return members_.rank_of(id).has_value(); }
  /// Whether the process has ever joined a world.
  bool has_joined(int id) const { return job_.find(joined_key(id)).has_value(); }
  int size() const { return static_cast<int>(members_.ids.size()); }
  /// Returns the ID for a new process. The process becomes a member when it is ready, see look().
  int add();
  /// Removes a process that has ended.
  void remove(int id);
  /// Lets new processes that are ready take part. Call this function several times a second.
  void look();

 private:
  void publish();

  Store job_;
  Membership members_;
  std::vector<int> waiting_;  ///< IDs of new processes
  int next_id_ = 0;
};

}  // namespace bellows::comm
