#pragma once

#include <vector>

#include "bellows/ladder/measurement.h"

namespace bellows::train {

// Computes the ladder's results from its measurements.

/// Runs of two recipes, paired by seed.
struct PairedRuns {
  std::vector<TargetRun> below, rung;
};

bool all_reached(const std::vector<TargetRun>& runs);
double median_seconds(const std::vector<TargetRun>& runs);

/// The ratio of paired values with its interval; a single pair has no interval (NaN).
RatioInterval ratio_of(const std::vector<double>& a, const std::vector<double>& b);
/// Times to target, `below` over `runs`: above 1, `runs` are faster.
/// Shapes: paired by seed
RatioInterval target_ratio(const std::vector<TargetRun>& below, const std::vector<TargetRun>& runs);
/// The ratio of samples per second, `runs` over `below`.
RatioInterval rate_ratio(const std::vector<TargetRun>& below, const std::vector<TargetRun>& runs);

/// The product of two ratios that were measured independently; their errors add up in quadrature, in logarithms.
RatioInterval chain(const RatioInterval& a, const RatioInterval& b);
/// Samples per second, over the runs.
RatioInterval rate_of(const std::vector<TargetRun>& runs);
/// Samples of the mean step.
double mean_step_samples(const std::vector<TargetRun>& runs);

/// Sets the results of runs to the target: time, accuracy, epochs, peak, curves.
void fill_target(RungResult& result, const std::vector<TargetRun>& runs);
/// Sets samples per second and the time of the mean step.
/// Params: step_samples – samples of the mean step
void fill_rate(RungResult& result, const RatioInterval& samples_per_s, double step_samples);
/// Sets plain's results from `runs`, rescales those of all rungs, and computes the ratios of median times to target.
void fill_over_start(LadderReport& report, const std::vector<TargetRun>& runs);

}  // namespace bellows::train
