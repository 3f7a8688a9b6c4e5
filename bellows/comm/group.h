#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace bellows::comm {

/// Ranks that compute together: all of a World, or some of them. A handle: copies are the same group.
/// Threads: collectives of one group are called in the same order on all of its ranks, by one thread at a time
class Group {
 public:
  struct State;
  explicit Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const;                       ///< of this process in the group
  int size() const;                       ///< processes in the group
  const std::vector<int>& ranks() const;  ///< their ranks in the world, ascending
  const std::string& name() const;        ///< as messages call it: "world", "data[0,2]"

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// The same ranks, connected anew: so that two threads can call collectives at the same time, each of its own group.
/// Collective.
/// Params: purpose – for messages: the group is called "world/gradients"
/// Cost:   sockets or a communicator between each two ranks. Of a group of one: none, it is the group itself
Group duplicate(const Group& group, const std::string& purpose);

/// What a rank handed to the collectives of one kind.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;  ///< of this rank's own tensors: the whole of an all_reduce, the rank's part of an all_gather
};

/// By the collective's name ("all_reduce", "broadcast", …), since the group was made, its duplicates included. What goes
/// over the network follows from it by the cost of each (collectives.h).
/// Threads: safe
std::map<std::string, Traffic> traffic(const Group& group);

}  // namespace bellows::comm
