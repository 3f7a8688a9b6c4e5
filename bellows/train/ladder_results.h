#pragma once

#include <vector>

#include "bellows/train/ladder_measure.h"

namespace bellows::train {

// What the ladder makes of its measurements.

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
/// The centre of `values` with its interval; as many as one ratio needs.
RatioInterval level_of(const std::vector<double>& values);

/// "helps" where the interval lies above 1; without an interval, from 2 % on.
Effect measured_effect(const RatioInterval& speedup);
Effect measured_effect(double memory_ratio);

/// Fills what runs to the target say: time, accuracy, epochs, peak, curves.
void fill_target(RungResult& result, const std::vector<TargetRun>& runs);
/// Fills samples per second and the mean step's time.
/// Params: step_samples – of the mean step
void fill_rate(RungResult& result, const RatioInterval& samples_per_s, double step_samples);

}  // namespace bellows::train
