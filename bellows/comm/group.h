#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace bellows::comm {

/// A process group: all ranks of a World, or some of them. It is a handle: copies refer to the same group.
/// Threads: one thread at a time calls collectives of a group, in the same order on all its ranks
class Group {
 public:
  struct State;
  explicit Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const;                       ///< of this process in the group
  int size() const;                       ///< number of processes in the group
  const std::vector<int>& ranks() const;  ///< their ranks in the world, ascending
  const std::string& name() const;        ///< for messages: "world", "data[0,2]"

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// Creates a second group of the same ranks with its own connections, so that two threads can call collectives at the
/// same time, each on its own group. Collective.
/// Params: purpose – for messages: the group is called "world/gradients"
/// Cost:   sockets or a communicator between every two ranks. None for a group of one, which is returned itself
Group duplicate(const Group& group, const std::string& purpose);

/// The tensors that a rank passed to the collectives of one kind.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;  ///< of this rank's own tensors: the whole tensor for all_reduce, the rank's part for all_gather
};

/// Traffic of a group and its duplicates since its creation, by the collective's name ("all_reduce", "broadcast", …).
/// To get the network traffic, apply the `Cost:` of each collective (collectives.h).
/// Threads: safe
std::map<std::string, Traffic> traffic(const Group& group);

}  // namespace bellows::comm
