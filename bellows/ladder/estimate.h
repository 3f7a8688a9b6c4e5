#pragma once

#include <map>
#include <utility>
#include <vector>

#include "bellows/plan/candidates.h"

namespace bellows::train {

/// Estimates step times from the table's factors, corrected by measurements. The deviation of a measured recipe is
/// divided among its measures that had no correction before.
class StepTimes {
 public:
  /// NaN before the first learn().
  double estimate_ms(const PlanCandidate& candidate) const;
  void learn(const PlanCandidate& candidate, double step_ms);

 private:
  double base_ms_ = 0;  ///< time of a step without measures; 0: unknown
  std::map<std::pair<char, int>, double> corrections_;
};

/// Infers evaluation peaks from measured ones that were too high, for recipes with the same precision. Activation
/// measures have no effect on evaluation. A smaller optimizer state lowers the peak by its predicted saving. Smaller
/// batches are assumed to lower it until two measurements show otherwise.
class EvaluationPeaks {
 public:
  explicit EvaluationPeaks(const std::vector<PlanCandidate>& candidates) : candidates_(candidates) {}
  /// Params: bytes – a peak above the target
  void add(size_t candidate, int64_t bytes) { too_high_.emplace_back(candidate, bytes); }
  /// Params: scale – measured over predicted bytes
  bool above(size_t candidate, int64_t bytes, double scale) const;

 private:
  bool parts_help() const;

  const std::vector<PlanCandidate>& candidates_;
  std::vector<std::pair<size_t, int64_t>> too_high_;
};

/// Whether `measures` are those of `other` plus additional ones.
bool adds_to(const MemoryOptions& measures, const MemoryOptions& other);

/// Returns the fastest recipe in paired windows. Among those whose difference from it is not significant, returns the
/// one with the fewest changes.
/// Shapes: changes – for the first entries of `seconds`; only these can be returned
size_t fastest_with_fewest_changes(const std::vector<std::vector<double>>& seconds, const std::vector<size_t>& changes);

}  // namespace bellows::train
