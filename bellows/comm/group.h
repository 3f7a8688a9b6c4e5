#pragma once

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

}  // namespace bellows::comm
