#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/comm/group.h"

namespace bellows::checkpoint {

/// The outcomes of an action that ran on all ranks or only on rank 0. Every rank gets the same Outcomes.
struct Outcomes {
  std::vector<std::string> results;  ///< one result per rank that ran the action, in group order
  std::string error;                 ///< for example "rank 2: …"; empty if no rank failed
  bool bad_value = false;            ///< whether the first error was a c10::ValueError

  /// Throws: c10::ValueError or c10::Error if there is an error. `what` is the start of the message
  void check(const std::string& what) const;
};

/// Runs `action` on every rank. Every rank gets the outcomes of all ranks.
/// Throws: c10::Error if the exchange of outcomes fails, for example because a rank has ended
Outcomes on_all_ranks(const comm::Group& group, const std::function<std::string()>& action);

/// Runs `action` only on rank 0. Every rank gets its outcome.
/// Throws: like on_all_ranks()
Outcomes on_rank_zero(const comm::Group& group, const std::function<std::string()>& action);

}  // namespace bellows::checkpoint
