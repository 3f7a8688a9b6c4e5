#pragma once

#include <vector>

#include "bellows/ladder/measurement.h"

namespace bellows::train {

// What the ladder makes of its measurements.

/// Runs of two recipes, pair by pair with the same seed.
struct PairedRuns {
  std::vector<TargetRun> below, rung;
};

bool all_reached(const std::vector<TargetRun>& runs);
double median_seconds(const std::vector<TargetRun>& runs);

/// Ratio of paired values with its interval; one pair has none (NaN).
RatioInterval ratio_of(const std::vector<double>& a, const std::vector<double>& b);
/// Times to the target, `below` over `runs`: above 1, `runs` are sooner.
/// Shapes: pairs by seed
RatioInterval target_ratio(const std::vector<TargetRun>& below, const std::vector<TargetRun>& runs);
/// The same of samples per second.
RatioInterval rate_ratio(const std::vector<TargetRun>& below, const std::vector<TargetRun>& runs);

/// The product of two ratios that were measured apart: the errors add up like those of independent figures, in
/// logarithms.
RatioInterval chain(const RatioInterval& a, const RatioInterval& b);
/// Samples per second, by run.
RatioInterval rate_of(const std::vector<TargetRun>& runs);
/// Samples of the mean step.
double mean_step_samples(const std::vector<TargetRun>& runs);

/// Fills what runs to the target say: time, accuracy, epochs, peak, curves.
void fill_target(RungResult& result, const std::vector<TargetRun>& runs);
/// Fills samples per second and the mean step's time.
/// Params: step_samples – of the mean step
void fill_rate(RungResult& result, const RatioInterval& samples_per_s, double step_samples);
/// Sets plain, and with it all rungs, to the level of plain's `runs`, and fills what compares the target's medians.
void fill_over_start(LadderReport& report, const std::vector<TargetRun>& runs);

}  // namespace bellows::train
