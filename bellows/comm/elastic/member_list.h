#pragma once

#include <optional>
#include <vector>

#include "bellows/comm/elastic/membership.h"
#include "bellows/comm/rendezvous/store.h"

namespace bellows::comm {

/// The launcher's list of the processes of a job. From this list, it chooses those that take part (struct Membership):
/// all processes of each replica that is complete. It publishes each change in the store. The ranks state in the store
/// how many processes form a replica. Consecutive places of the launcher form a replica.
/// Threads: not thread-safe
class MemberList {
 public:
  /// Publishes generation 0 with the IDs 0 to `count` - 1 in the places 0 to `count` - 1.
  /// Params: job – the store, under members_prefix()
  MemberList(Store job, int count);

  bool takes_part(int id) const { return published_.rank_of(id).has_value(); }
  /// Whether the process has ever joined a world.
  bool has_joined(int id) const { return job_.find(joined_key(id)).has_value(); }
  /// Whether a complete replica takes part that does not need the process.
  bool can_spare(int id) const;
  /// Returns the ID for a new process. The process takes part when it is ready and its replica is complete, see
  /// admit_ready().
  int add(int place);
  /// Removes a process that has ended. Publishes nothing if no complete replica is left.
  void remove(int id);
  /// Lets processes that are ready take part. Call this function several times a second.
  void admit_ready();

 private:
  struct Process {
    int id;
    int place;
    bool ready;
  };
  std::vector<int> complete_replicas() const;
  void publish_changes();

  Store job_;
  std::vector<Process> processes_;
  Membership published_;
  int next_id_ = 0;
};

}  // namespace bellows::comm
