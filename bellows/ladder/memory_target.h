#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/plan/candidates.h"
#include "bellows/system/machine.h"

namespace bellows::train {

/// What has to be kept under, and how well it is measured.
struct MemoryTarget {
  int64_t bytes = 0;  ///< of the peak, as LadderJob::take_peak_bytes() counts
  /// The choice has to reach it from scratch. 0: whether it learns is not measured.
  double target_accuracy = 0;
  int64_t max_epochs = 30;  ///< a run that has not reached the accuracy by then has failed to
  int windows = 3;          ///< of each recipe, to put it in its place …
  int pairs = 7;            ///< … and of the fastest that fit, in turns, to choose among them
  double window_s = 0.25;
  uint64_t seed = 1;
  double max_seconds = std::numeric_limits<double>::infinity();  ///< no further recipe is measured after this long
};

enum class TargetVerdict { chosen, fits, too_large, misses_target, failed, not_measured };
/// "chosen", "fits", "too large", "misses the target", "failed", "not measured".
std::string_view to_string(TargetVerdict verdict);

/// A recipe that was measured. Figures that were not are NaN or 0.
struct TargetRung {
  PlanCandidate candidate;
  TargetVerdict verdict = TargetVerdict::not_measured;
  std::string note;                      ///< the verdict's reason in words
  int64_t peak_bytes = 0;                ///< the highest of all its steps; of the choice, of an evaluation, too
  int64_t evaluation_bytes = 0;          ///< the peak while it evaluated, of those that might have been chosen
  double step_ms = RungResult::unknown;  ///< of an optimizer step with all parts of the batch; median of the windows
  RatioInterval time_over_start;         ///< of a step, over the recipe as it is, in turns
  double accuracy = RungResult::unknown, time_to_target_s = RungResult::unknown;
};

struct MemoryTargetReport {
  Machine machine;
  std::string model, data;
  MemoryTarget target;
  std::vector<TargetRung> rungs;  ///< in the order in which they were measured; the first is the recipe as it is
  // Recipes that were not measured:
  int64_t predicted_too_large = 0;  ///< the plan says that they need more
  int64_t expected_slower = 0;      ///< they would take longer than what fits
  int64_t left = 0;                 ///< time was up, or it was stopped
  bool certain = true;              ///< none was left that could have been faster
  std::string recipe_yaml;          ///< of the choice; "" where there is none
  double seconds = 0;
  bool interrupted = false;

  const TargetRung* chosen() const;
  /// The one with the least peak that was measured; null if none was.
  const TargetRung* smallest() const;
};

/// News while the search runs.
struct MemoryTargetEvent {
  const TargetRung* rung = nullptr;
  std::string activity;  ///< "windows", "in turns", "evaluation", "target"; finished: "measured", "refused", "chosen"
  int64_t done = 0, total = 0;
  bool finished = false;  ///< the rung has its figures, or another verdict
};

/// Finds the recipe that stays under a peak of memory at the least time per step, by measurement.
///
/// The recipe as it is comes first; where it stays under the target, nothing is changed. Then, what is expected to be
/// fastest first, those whose predicted peak is at most a tenth above the target: three steps and some timed windows each. What they
/// measure corrects what is expected of the others: prediction by the ratio of the first peak, times by measure. No further
/// one is measured when the next would take a tenth longer than the best that fits, or only adds to one that fits. The
/// fastest that fit, three at most, then take turns with the recipe as it is; what cannot be told apart is decided for fewer
/// changes. The choice must keep under the target while it evaluates, and reach `target_accuracy` if that is given; if not,
/// the search goes on. Another optimizer is tried only when nothing else fits; and when nothing is predicted to,
/// up to three of the smallest are measured all the same.
/// Params: candidates – the first is the recipe as it is; their recipes' growth of batches and images is left out while
///         they are measured: full size is what must fit
/// Cost:   some seconds a recipe that is measured
/// Throws: c10::ValueError – no candidates, an option out of range
MemoryTargetReport find_recipe_under(const std::vector<PlanCandidate>& candidates, LadderJobs& jobs,
                                     const MemoryTarget& target, const LadderInstruments& instruments,
                                     const std::function<void(const MemoryTargetEvent&)>& on_event = {});

/// What the choice is and what it costs, or why there is none, first; then what else there is to know: a paragraph each.
std::vector<std::string> target_words(const MemoryTargetReport& report);

/// Which recipes were not measured, and why; "": none.
std::string not_measured_words(const MemoryTargetReport& report);

}  // namespace bellows::train
