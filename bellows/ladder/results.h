#pragma once

#include <vector>

#include "bellows/ladder/measurement.h"

namespace bellows::train {

// The functions below compute the ladder's results from its measurements.

/// Runs of the previous configuration (`below`) and of the rung, paired by seed.
struct PairedRuns {
  std::vector<TargetRun> below, rung;
};

bool all_reached(const std::vector<TargetRun>& runs);
double median_seconds(const std::vector<TargetRun>& runs);

/// Returns the ratio of paired values with its interval. A single pair has no interval (NaN).
RatioInterval ratio_of(const std::vector<double>& a, const std::vector<double>& b);
/// Returns the ratio of the times to target, `below` divided by `runs`. If it is above 1, `runs` are faster. The runs
/// must be paired by seed.
RatioInterval target_ratio(const std::vector<TargetRun>& below, const std::vector<TargetRun>& runs);
/// Returns the ratio of the samples per second, `runs` divided by `below`.
RatioInterval rate_ratio(const std::vector<TargetRun>& below, const std::vector<TargetRun>& runs);

/// Returns the product of two ratios that were measured independently. The errors of their logarithms add up in
/// quadrature.
RatioInterval chain(const RatioInterval& a, const RatioInterval& b);
/// Returns the samples per second of the runs, with an interval.
RatioInterval rate_of(const std::vector<TargetRun>& runs);
/// Returns the mean number of samples per step.
double mean_step_samples(const std::vector<TargetRun>& runs);

/// Stores the results of runs to the target: time, accuracy, epochs, peak and curves.
void fill_target(RungResult& result, const std::vector<TargetRun>& runs);
/// Stores the samples per second and the time of the mean step.
/// Params: step_samples – number of samples in the mean step
void fill_rate(RungResult& result, const RatioInterval& samples_per_s, double step_samples);
/// Computes the results of the plain program from `runs`, rescales the results of all rungs, and computes the ratios of
/// the median times to target.
void fill_over_start(LadderReport& report, const std::vector<TargetRun>& runs);

}  // namespace bellows::train
