#pragma once

#include <map>
#include <utility>
#include <vector>

#include "bellows/plan/candidates.h"

namespace bellows::train {

/// Estimates step times from the factors in the table of techniques, and corrects the estimates by measurements. The
/// memory options that a candidate recipe uses are called its measures. If the recipe's measured time deviates from the
/// estimate, the deviation is divided among its measures that have no correction yet.
class StepTimes {
 public:
  /// Returns NaN before the first learn().
  double estimate_ms(const PlanCandidate& candidate) const;
  void learn(const PlanCandidate& candidate, double step_ms);

 private:
  double base_ms_ = 0;  ///< time of a step without measures in milliseconds; 0 if unknown
  std::map<std::pair<char, int>, double> corrections_;
};

/// Infers whether a recipe's peak memory during evaluation is above the target. The inference uses measured evaluation
/// peaks of recipes with the same precision. Measures that change activations have no effect on evaluation. A smaller
/// optimizer state lowers the peak by its predicted saving. Smaller batches are assumed to lower the peak until two
/// measurements show otherwise.
class EvaluationPeaks {
 public:
  explicit EvaluationPeaks(const std::vector<PlanCandidate>& candidates) : candidates_(candidates) {}
  /// Params: bytes – a measured peak above the target
  void add(size_t candidate, int64_t bytes) { too_high_.emplace_back(candidate, bytes); }
  /// Params: scale – ratio of measured to predicted bytes
  bool above(size_t candidate, int64_t bytes, double scale) const;

 private:
  bool parts_help() const;

  const std::vector<PlanCandidate>& candidates_;
  std::vector<std::pair<size_t, int64_t>> too_high_;
};

/// Returns whether `measures` contains all measures of `other` and at least one more.
bool adds_to(const MemoryOptions& measures, const MemoryOptions& other);

/// Returns the index of the fastest recipe in paired windows. If other recipes do not differ significantly from the
/// fastest one, returns the index of the recipe with the fewest changes among them.
/// Params: changes – number of changes for the first entries of `seconds`. Only these entries can be returned
size_t fastest_with_fewest_changes(const std::vector<std::vector<double>>& seconds, const std::vector<size_t>& changes);

}  // namespace bellows::train
