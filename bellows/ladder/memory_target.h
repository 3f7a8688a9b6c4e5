#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/plan/candidates.h"
#include "bellows/system/machine.h"

namespace bellows::train {

/// A memory limit, and the precision of the measurements.
struct MemoryTarget {
  int64_t bytes = 0;  ///< limit of the peak, as measured by LadderJob::take_peak_bytes()
  /// The chosen recipe must reach it from scratch. 0: the accuracy is not measured.
  double target_accuracy = 0;
  int64_t max_epochs = 30;  ///< a run that has not reached the accuracy by then has failed
  int windows = 3;          ///< timed windows of each recipe, for the ranking …
  int pairs = 7;            ///< … and pairs of alternating windows of the fastest that fit, for the choice
  double window_s = 0.25;
  uint64_t seed = 1;
  double max_seconds = std::numeric_limits<double>::infinity();  ///< no further recipe is measured after this time
};

enum class TargetVerdict { chosen, fits, too_large, misses_target, failed, not_measured };
/// "chosen", "fits", "too large", "did not reach the target", "failed", "not measured".
std::string_view to_string(TargetVerdict verdict);

/// The results of a measured recipe. Values that were not measured are NaN or 0.
struct TargetRung {
  PlanCandidate candidate;
  TargetVerdict verdict = TargetVerdict::not_measured;
  std::string note;                      ///< reason for the verdict
  int64_t peak_bytes = 0;                ///< maximum over all steps; for the chosen recipe, including an evaluation
  int64_t evaluation_bytes = 0;          ///< peak during evaluation, for recipes that might have been chosen
  double step_ms = RungResult::unknown;  ///< of an optimizer step with all parts of the batch; median of the windows
  RatioInterval time_over_start;         ///< time of a step relative to the unchanged recipe, in alternating windows
  double accuracy = RungResult::unknown, time_to_target_s = RungResult::unknown;
};

struct MemoryTargetReport {
  Machine machine;
  std::string model, data;
  MemoryTarget target;
  std::vector<TargetRung> rungs;  ///< in the order of measurement; the first is the unchanged recipe
  // Recipes that were not measured:
  int64_t predicted_too_large = 0;  ///< predicted peak above the limit
  int64_t expected_slower = 0;      ///< expected to be slower than recipes that fit
  int64_t left = 0;                 ///< skipped because of the time limit or a stop request
  bool certain = true;              ///< no recipe was skipped that could have been faster
  std::string recipe_yaml;          ///< of the chosen recipe; "" if there is none
  double seconds = 0;
  bool interrupted = false;

  const TargetRung* chosen() const;
  /// The measured recipe with the lowest peak; null if none was measured.
  const TargetRung* smallest() const;
};

/// Progress of the search.
struct MemoryTargetEvent {
  const TargetRung* rung = nullptr;
  std::string activity;  ///< "windows", "in turns", "evaluation", "target"; finished: "measured", "refused", "chosen"
  int64_t done = 0, total = 0;
  bool finished = false;  ///< the rung has its results, or its verdict changed
};

/// Finds the recipe with the lowest time per step whose peak memory is below a limit, by measurement.
///
/// The unchanged recipe comes first; if it fits, it is chosen. Then recipes whose predicted peak is at most 10 % above
/// the limit are measured, the expected fastest first: three steps and some timed windows each. These measurements
/// correct the expectations of the others: peaks by the ratio of the first one, times by measure. The measurements end
/// when the next recipe is expected to take 10 % longer than the best that fits. Recipes that only add measures to one
/// that fits are skipped.
///
/// Up to three of the fastest that fit then alternate with the unchanged recipe. Among recipes without a significant
/// difference, the one with the fewest changes is chosen. It must also fit during evaluation, and reach
/// `target_accuracy` if that is set; otherwise, the search continues.
///
/// Another optimizer is only tried if nothing else fits. If no recipe is predicted to fit, up to three of the smallest
/// are measured anyway.
/// Params: candidates – the first is the unchanged recipe. Batch-size warm-up and progressive resizing are off during
///                      the measurements, because the full size must fit
/// Cost:   some seconds per measured recipe
/// Throws: c10::ValueError if there are no candidates or an option is out of range
MemoryTargetReport find_recipe_under(const std::vector<PlanCandidate>& candidates, LadderJobs& jobs,
                                     const MemoryTarget& target, const LadderInstruments& instruments,
                                     const std::function<void(const MemoryTargetEvent&)>& on_event = {});

/// Describes the chosen recipe and its cost, or why there is none, then further details; one paragraph each.
std::vector<std::string> target_words(const MemoryTargetReport& report);

/// Describes which recipes were not measured, and why; "" if there are none.
std::string not_measured_words(const MemoryTargetReport& report);

}  // namespace bellows::train
