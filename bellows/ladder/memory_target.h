#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/plan/candidates.h"
#include "bellows/system/machine.h"

namespace bellows::train {

/// A memory limit and the settings of the search.
struct MemoryTarget {
  int64_t bytes = 0;  ///< upper limit of the peak, as measured by LadderJob::take_peak_bytes()
  /// The chosen recipe must reach this accuracy from scratch. If it is 0, the accuracy is not measured.
  double target_accuracy = 0;
  int64_t max_epochs = 30;  ///< a run that has not reached the accuracy after this many epochs has failed
  /// Number of timed windows of each recipe. The ranking is computed from these windows.
  int windows = 3;
  /// Number of pairs of alternating windows of the fastest recipes that fit. The recipe is chosen from the results of
  /// these windows.
  int pairs = 7;
  double window_s = 0.25;
  uint64_t seed = 1;
  /// No further recipe is measured after this time.
  double max_seconds = std::numeric_limits<double>::infinity();
};

enum class TargetVerdict { chosen, fits, too_large, misses_target, failed, not_measured };
/// "chosen", "fits", "too large", "did not reach the target", "failed", "not measured".
std::string_view to_string(TargetVerdict verdict);

/// The results of a measured recipe. Values that were not measured are NaN or 0.
struct TargetRung {
  PlanCandidate candidate;
  TargetVerdict verdict = TargetVerdict::not_measured;
  std::string note;  ///< reason for the verdict
  /// Maximum over all steps. It includes an evaluation if the recipe could be chosen.
  int64_t peak_bytes = 0;
  int64_t evaluation_bytes = 0;  ///< peak during evaluation, for recipes that could be chosen
  /// Time of an optimizer step, which includes all gradient accumulation steps. Median of the windows.
  double step_ms = RungResult::unknown;
  /// Time of a step relative to the unchanged recipe, measured in alternating windows.
  RatioInterval time_over_start;
  double accuracy = RungResult::unknown, time_to_target_s = RungResult::unknown;
};

struct MemoryTargetReport {
  Machine machine;
  std::string model, data;
  MemoryTarget target;
  /// In the order of measurement. The first recipe is the unchanged recipe.
  std::vector<TargetRung> rungs;
  // Number of recipes that were not measured, by reason:
  int64_t predicted_too_large = 0;  ///< predicted peak is above the limit
  int64_t expected_slower = 0;      ///< expected to be slower than recipes that fit
  int64_t left = 0;                 ///< skipped because of the time limit or a stop request
  bool certain = true;              ///< false if a skipped recipe might have been faster
  std::string recipe_yaml;          ///< the chosen recipe; empty if no recipe was chosen
  double seconds = 0;
  bool interrupted = false;

  const TargetRung* chosen() const;
  /// Returns the measured recipe with the lowest peak, or null if no recipe was measured.
  const TargetRung* smallest() const;
};

/// Progress report of the search.
struct MemoryTargetEvent {
  const TargetRung* rung = nullptr;
  /// While a measurement runs: "windows", "in turns", "evaluation" or "target". When `finished` is true: "measured",
  /// "refused" or "chosen".
  std::string activity;
  int64_t done = 0, total = 0;
  bool finished = false;  ///< whether the rung has all its results, or its verdict has changed
};

/// Measures recipes to find the fastest one (lowest time per step) whose peak memory is below a limit.
///
/// The unchanged recipe is measured first. If it fits, it is chosen. Otherwise, recipes whose predicted peak is at most
/// 10 % above the limit are measured with three steps and some timed windows. The recipe that is expected to be the
/// fastest comes first. Each measurement corrects the expectations for the remaining recipes. All predicted peaks are
/// scaled by the ratio of the first measured peak to its prediction. Measured times correct the expected time of each
/// measure (memory option). The measurements end when the next recipe is expected to take 10 % longer than the fastest
/// recipe that fits. If a recipe only adds measures to a recipe that fits, it is skipped.
///
/// Up to three of the fastest recipes that fit then run alternately with the unchanged recipe. Among recipes without a
/// significant difference, the recipe with the fewest changes is chosen. It must also fit during evaluation. If
/// `target_accuracy` is set, it must reach that accuracy. If the recipe fails one of these checks, the search
/// continues.
///
/// Recipes with a different optimizer are measured only if no other recipe fits. If no recipe is predicted to fit, up
/// to three recipes with the lowest predicted peaks are measured anyway.
/// Params: candidates – the recipes to search; the first one is the unchanged recipe. Batch-size warm-up and
///                      progressive resizing are off during the measurements, because the full batch and image size
///                      must fit
/// Cost:   some seconds per measured recipe
/// Throws: c10::ValueError if there are no candidates or an option is out of range
MemoryTargetReport find_recipe_under(const std::vector<PlanCandidate>& candidates, LadderJobs& jobs,
                                     const MemoryTarget& target, const LadderInstruments& instruments,
                                     const std::function<void(const MemoryTargetEvent&)>& on_event = {});

/// Describes the chosen recipe and its cost, or the reason why no recipe was chosen. Further details follow. Each
/// string is one paragraph.
std::vector<std::string> target_words(const MemoryTargetReport& report);

/// Describes which recipes were not measured, and why. Returns an empty text if all recipes were measured.
std::string not_measured_words(const MemoryTargetReport& report);

}  // namespace bellows::train
