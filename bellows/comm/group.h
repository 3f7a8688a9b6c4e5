#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace bellows::comm {

/// A process group, which contains all ranks of a World or some of them. It is a handle: copies refer to the same
/// group.
/// Threads: only one thread at a time may call collectives of a group. All ranks must call them in the same order
class Group {
 public:
  struct State;
  explicit Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const;                       ///< rank of this process within the group
  int size() const;                       ///< number of processes in the group
  const std::vector<int>& ranks() const;  ///< the ranks of these processes in the world, in ascending order
  const std::string& name() const;        ///< name for messages, such as "world" or "data[0,2]"

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// Creates a second group of the same ranks with separate connections. Two threads can then call collectives at the
/// same time, each on its own group. Collective.
/// Params: purpose – suffix of the name for messages: "gradients" gives "world/gradients"
/// Cost:   sockets or a communicator between every two ranks. A group of one rank has no cost, because the group itself
///         is returned
Group duplicate(const Group& group, const std::string& purpose);

/// Creates a group of some ranks of `parent`, which must include this rank. Collective for the ranks of the new group,
/// which must all pass the same list.
/// Params: ranks – ranks in the world, in ascending order; name – name of the group for messages
/// Throws: c10::ValueError if a rank does not belong to `parent`, or if `ranks` is not ascending or does not include this
///         rank
Group subgroup(const Group& parent, const std::vector<int>& ranks, const std::string& name);

/// Creates the group of all ranks that belong to `first` on any rank of `second`, such as all ranks of two axes of a
/// mesh. Collective for the ranks of the new group.
Group combine(const Group& first, const Group& second, const std::string& purpose);

/// The number of this rank's calls of one kind of collective, and the total size of the tensors in these calls.
struct Traffic {
  int64_t calls = 0;
  /// Total size of this rank's own tensors. For all_reduce, the complete tensor counts. For all_gather and
  /// all_gather_in_place, only this rank's part counts.
  int64_t bytes = 0;
};

/// Returns the traffic of a group and its duplicates since the group was created, with one entry per collective
/// ("all_reduce", "broadcast", …). To get the network traffic, multiply by the factor in the `Cost:` line of each
/// collective (collectives.h).
/// Threads: thread-safe
std::map<std::string, Traffic> traffic(const Group& group);

}  // namespace bellows::comm
