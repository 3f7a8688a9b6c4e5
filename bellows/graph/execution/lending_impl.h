#pragma once

#include <algorithm>
#include <vector>

namespace bellows::graph::detail {

/// Which outputs of a program are lent out of its arena: those that came back in time after each of the first two runs, until they
/// do so no more. One that is held for long would keep the whole arena from other programs.
class Lending {
 public:
  /// After a run.
  /// Params:  came_back – of each output: in time
  /// Returns: others are lent from now on
  bool learn(const std::vector<bool>& came_back) {
    if (++runs_ == 1) {
      lent_ = came_back;
      return false;
    }
    std::vector<bool> next = lent_;
    for (size_t i = 0; i < next.size(); ++i) next[i] = next[i] && came_back[i];
    const bool any = std::find(next.begin(), next.end(), true) != next.end();
    const bool changes = runs_ == 2 ? any : next != lent_;
    lent_ = any ? std::move(next) : std::vector<bool>();
    return changes;
  }
  /// Nothing is to be learned any more.
  bool is_settled() const { return runs_ > 1 && lent_.empty(); }
  /// Of each output; empty: none, or not known yet.
  std::vector<bool> lent() const { return runs_ > 1 ? lent_ : std::vector<bool>(); }

 private:
  int runs_ = 0;
  std::vector<bool> lent_;
};

}  // namespace bellows::graph::detail
