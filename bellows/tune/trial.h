#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "bellows/tune/search_space.h"

namespace bellows::tune {

enum class TrialState {
  running,
  complete,
  pruned,      ///< the pruner ended it early
  failed,      ///< it crashed, reached a limit, or did not report a result
  interrupted  ///< the search ended before the trial did; its configuration runs again
};

/// Returns the name of the state, such as "complete".
inline const char* state_name(TrialState state) {
  constexpr std::array names = {"running", "complete", "pruned", "failed", "interrupted"};
  return names.at(static_cast<size_t>(state));
}

/// How good a run is at one moment.
struct TrialReport {
  int64_t step = 0;  ///< number of the evaluation, starting at 1
  double value = 0;  ///< smaller is better, such as the loss or the negative accuracy
  /// If the objective is a time or a cost: the part of it that the run has used so far. NaN: not known.
  double spent = std::numeric_limits<double>::quiet_NaN();
};

/// One run of a configuration.
struct Trial {
  int64_t number = 0;
  Assignment values{};
  TrialState state = TrialState::running;
  /// The number to minimize: the metric of the objective, negated if the search maximizes it. NaN: not known.
  double objective = std::numeric_limits<double>::quiet_NaN();
  /// Sum of the amounts by which constraints are violated, each relative to its bound. 0: all constraints are
  /// satisfied.
  double violation = 0;
  std::map<std::string, double> metrics{};  ///< results by name
  std::vector<TrialReport> reports{};       ///< during the run; steps increase
  std::string failure{};                    ///< why it failed, in words
  double seconds = 0;                       ///< wall time

  bool finished() const { return state != TrialState::running && state != TrialState::interrupted; }
  bool succeeded() const { return state == TrialState::complete || state == TrialState::pruned; }
  bool feasible() const { return state == TrialState::complete && violation <= 0; }
};

/// Returns the feasible trial with the smallest objective, or a null pointer if no trial is feasible.
const Trial* best_trial(const std::vector<Trial>& trials);

}  // namespace bellows::tune
