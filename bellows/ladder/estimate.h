#pragma once

#include <map>
#include <utility>
#include <vector>

#include "bellows/plan/candidates.h"

namespace bellows::train {

/// How long a step is expected to take: the table's factors, corrected by what was measured. A recipe's surprise is shared
/// between those of its measures that were not measured before.
class StepTimes {
 public:
  /// NaN before the first learn().
  double estimate_ms(const PlanCandidate& candidate) const;
  void learn(const PlanCandidate& candidate, double step_ms);

 private:
  double base_ms_ = 0;  ///< of a step without measures; 0: not known
  std::map<std::pair<char, int>, double> corrections_;
};

/// What is known of the peaks while recipes evaluate. One that was too high speaks for those of its precision: what becomes of
/// activations is nothing to it, a smaller state lowers it by as much as it lowers the step's, smaller batches do if they did
/// before.
class EvaluationPeaks {
 public:
  explicit EvaluationPeaks(const std::vector<PlanCandidate>& candidates) : candidates_(candidates) {}
  /// Params: bytes – above what was allowed
  void add(size_t candidate, int64_t bytes) { too_high_.emplace_back(candidate, bytes); }
  /// Params: scale – of predicted bytes
  bool above(size_t candidate, int64_t bytes, double scale) const;

 private:
  bool parts_help() const;

  const std::vector<PlanCandidate>& candidates_;
  std::vector<std::pair<size_t, int64_t>> too_high_;
};

/// `measures` are those of `other` and more.
bool adds_to(const MemoryOptions& measures, const MemoryOptions& other);

/// The fastest, by paired windows; of those that cannot be told from it the one with the fewest changes.
/// Shapes: changes – of the first ones alone that `seconds` has windows of; those are who can win
size_t fastest_with_fewest_changes(const std::vector<std::vector<double>>& seconds, const std::vector<size_t>& changes);

}  // namespace bellows::train
