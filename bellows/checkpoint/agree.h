#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/comm/group.h"

namespace bellows::checkpoint {

/// What became of something that all ranks have done: the same on each.
struct Outcomes {
  std::vector<std::string> results;  ///< by rank of the group
  std::string error;                 ///< "" where all went well: "rank 2: …"
  bool bad_value = false;            ///< the first error was a c10::ValueError

  /// Throws: c10::ValueError or c10::Error – where there is an error, behind `what`
  void check(const std::string& what) const;
};

/// Runs `action` on every rank and tells all of them how it went, on this one and on the others.
/// Throws: c10::Error – a rank has ended
Outcomes on_all_ranks(const comm::Group& group, const std::function<std::string()>& action);

/// The same, where rank 0 alone does something.
Outcomes on_rank_zero(const comm::Group& group, const std::function<std::string()>& action);

}  // namespace bellows::checkpoint
