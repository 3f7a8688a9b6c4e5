#include <c10/util/Exception.h>

#include "bellows/checkpoint/agree.h"
#include "bellows/comm/collectives.h"
#include "bellows/core/error.h"

namespace bellows::checkpoint {

namespace {

constexpr char went_well = '+', value_error = 'v', other_error = 'e';

std::string outcome_of(const std::function<std::string()>& action) {
  try {
    return went_well + action();
  } catch (const c10::ValueError& error) {
    return value_error + user_message(error);
  } catch (const std::exception& error) {
    return other_error + user_message(error);
  }
}

void add_outcome(Outcomes& outcomes, const std::string& outcome, int rank) {
  if (outcome[0] == went_well) {
    outcomes.results.push_back(outcome.substr(1));
    return;
  }
  outcomes.results.emplace_back();
  if (outcomes.error.empty()) outcomes.bad_value = outcome[0] == value_error;
  outcomes.error += c10::str(outcomes.error.empty() ? "" : "\n", "rank ", rank, ": ", outcome.substr(1));
}

}  // namespace

void Outcomes::check(const std::string& what) const {
  TORCH_CHECK_VALUE(error.empty() || !bad_value, what, error);
  TORCH_CHECK(error.empty(), what, error);
}

Outcomes on_all_ranks(const comm::Group& group, const std::function<std::string()>& action) {
  const std::vector<std::string> all = comm::all_gather_strings(outcome_of(action), group);
  Outcomes outcomes;
  outcomes.results.reserve(all.size());
  for (size_t i = 0; i < all.size(); ++i) add_outcome(outcomes, all[i], group.ranks()[i]);
  return outcomes;
}

Outcomes on_rank_zero(const comm::Group& group, const std::function<std::string()>& action) {
  Outcomes outcomes;
  const std::string mine = group.rank() == 0 ? outcome_of(action) : "";
  add_outcome(outcomes, comm::broadcast_string(mine, 0, group), group.ranks()[0]);
  return outcomes;
}

}  // namespace bellows::checkpoint
