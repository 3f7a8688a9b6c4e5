#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/comm/group.h"

namespace bellows::checkpoint {

/// The outcome of an action that all ranks have run. It is the same on each rank.
struct Outcomes {
  std::vector<std::string> results;  ///< by rank in the group
  std::string error;                 ///< "rank 2: …", or "" if no rank failed
  bool bad_value = false;            ///< whether the first error was a c10::ValueError

  /// Throws: c10::ValueError or c10::Error if there is an error, with `what` as the start of the message
  void check(const std::string& what) const;
};

/// Runs `action` on every rank. Every rank gets the outcomes of all ranks.
/// Throws: c10::Error if a rank has ended
Outcomes on_all_ranks(const comm::Group& group, const std::function<std::string()>& action);

/// Runs `action` on rank 0 only. Every rank gets its outcome.
Outcomes on_rank_zero(const comm::Group& group, const std::function<std::string()>& action);

}  // namespace bellows::checkpoint
