#include "bellows/ladder/results.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

namespace bellows::train {

namespace {

template <class Value>
std::vector<double> values_of(const std::vector<TargetRun>& runs, Value value) {
  std::vector<double> values;
  for (const TargetRun& run : runs) values.push_back(static_cast<double>(value(run)));
  return values;
}

Range range_of(const std::vector<double>& values) {
  if (values.size() < 2) return {};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {.low = *low, .high = *high};
}

double seconds_of(const TargetRun& run) {
  return run.seconds;
}

double seconds_per_sample(const TargetRun& run) {
  return run.seconds / static_cast<double>(run.samples);
}

/// Phases of the mean step over all runs.
StepShares step_shares(const std::vector<TargetRun>& runs) {
  StepShares sum;
  double steps = 0, total_ms = 0;
  for (const TargetRun& run : runs) {
    if (run.phases.total_ms() == 0) return {};
    steps += static_cast<double>(run.steps);
    total_ms += 1e3 * run.seconds;
    sum.load_ms += run.phases.load_ms;
    sum.forward_ms += run.phases.forward_ms;
    sum.backward_ms += run.phases.backward_ms;
    sum.optimizer_ms += run.phases.optimizer_ms;
  }
  for (double* part : {&sum.load_ms, &sum.forward_ms, &sum.backward_ms, &sum.optimizer_ms}) *part /= steps;
  sum.other_ms = std::max(0.0, total_ms / steps - sum.total_ms());
  return sum;
}

std::string runs_again(const std::vector<TargetRun>& runs) {
  std::string text;
  for (const TargetRun& run : runs) {
    if (run.earlier_s.empty()) continue;
    text += c10::str(text.empty() ? "" : "; ", "seed ", run.seed, " took ");
    for (const double seconds : run.earlier_s) text += format_seconds(seconds) + ", ";
    text += format_seconds(run.seconds);
  }
  return text;
}

}  // namespace

bool all_reached(const std::vector<TargetRun>& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const TargetRun& run) { return run.reached; });
}

double median_seconds(const std::vector<TargetRun>& runs) {
  return median(values_of(runs, seconds_of));
}

RatioInterval ratio_of(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() >= 2) return paired_ratio(a, b);
  return {.ratio = a.at(0) / b.at(0), .low = RungResult::unknown, .high = RungResult::unknown};
}

RatioInterval target_ratio(const std::vector<TargetRun>& below, const std::vector<TargetRun>& runs) {
  return ratio_of(values_of(below, seconds_of), values_of(runs, seconds_of));
}

RatioInterval rate_ratio(const std::vector<TargetRun>& below, const std::vector<TargetRun>& runs) {
  return ratio_of(values_of(below, seconds_per_sample), values_of(runs, seconds_per_sample));
}

RatioInterval chain(const RatioInterval& a, const RatioInterval& b) {
  const double ratio = a.ratio * b.ratio;
  const double down = std::hypot(std::log(a.ratio / a.low), std::log(b.ratio / b.low));
  const double up = std::hypot(std::log(a.high / a.ratio), std::log(b.high / b.ratio));
  return {.ratio = ratio, .low = ratio * std::exp(-down), .high = ratio * std::exp(up)};
}

RatioInterval rate_of(const std::vector<TargetRun>& runs) {
  return ratio_of(std::vector<double>(runs.size(), 1.0), values_of(runs, seconds_per_sample));
}

double mean_step_samples(const std::vector<TargetRun>& runs) {
  double steps = 0, samples = 0;
  for (const TargetRun& run : runs) {
    steps += static_cast<double>(run.steps);
    samples += static_cast<double>(run.samples);
  }
  return samples / steps;
}

void fill_target(RungResult& result, const std::vector<TargetRun>& runs) {
  const std::vector<double> accuracies = values_of(runs, [](const TargetRun& run) { return run.accuracy; });
  result.accuracy = median(accuracies);
  result.accuracy_range = range_of(accuracies);
  result.curves.clear();
  result.peak_bytes = 0;
  result.shares = step_shares(runs);
  result.runs_again = runs_again(runs);
  for (const TargetRun& run : runs) {
    result.peak_bytes = std::max(result.peak_bytes, run.peak_bytes);
    result.curves.push_back({.seed = run.seed, .points = run.points});
    result.bottleneck = run.bottleneck;
  }
  if (!all_reached(runs)) return;
  result.time_to_target_s = median_seconds(runs);
  result.time_to_target_range = range_of(values_of(runs, seconds_of));
  result.epochs = median(values_of(runs, [](const TargetRun& run) { return run.epochs; }));
}

void fill_rate(RungResult& result, const RatioInterval& samples_per_s, double step_samples) {
  result.samples_per_s = samples_per_s.ratio;
  result.samples_per_s_interval = {.low = samples_per_s.low, .high = samples_per_s.high};
  const double scale = 1e3 * step_samples;
  result.step_ms = scale / samples_per_s.ratio;
  result.step_ms_interval = {.low = scale / samples_per_s.high, .high = scale / samples_per_s.low};
}

void fill_over_start(LadderReport& report, const std::vector<TargetRun>& runs) {
  RungResult& plain = report.plain;
  const RatioInterval level = rate_of(runs);
  fill_rate(plain, level, mean_step_samples(runs));
  for (RungResult& rung : report.rungs) {
    if (std::isfinite(rung.step_ms)) {
      fill_rate(rung, chain(level, rung.samples_per_s_over_start), 1e-3 * rung.step_ms * rung.samples_per_s);
    }
    if (plain.curves.size() >= 2 && rung.curves.size() >= 2) {
      rung.target_over_start = plain.time_to_target_s / rung.time_to_target_s;
    }
  }
}

}  // namespace bellows::train
