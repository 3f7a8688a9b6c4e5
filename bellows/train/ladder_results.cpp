#include "bellows/train/ladder_results.h"

#include <algorithm>
#include <cmath>

namespace bellows::train {

namespace {

constexpr double noticeable = 0.02;  // a change below this is called none

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

/// Of the mean step of all runs.
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

}  // namespace

std::string_view to_string(Verdict verdict) {
  static constexpr std::string_view words[] = {"kept",           "no effect",         "slower",
                                               "more memory",    "misses the target", "later at target",
                                               "does not apply", "not measured"};
  return words[static_cast<size_t>(verdict)];
}

std::string_view to_string(Effect effect) {
  static constexpr std::string_view words[] = {"yes", "no", "costs", "-"};
  return words[static_cast<size_t>(effect)];
}

const RungResult& LadderReport::top() const {
  const auto last = std::find_if(rungs.rbegin(), rungs.rend(), [](const RungResult& rung) { return rung.kept(); });
  return last == rungs.rend() ? plain : *last;
}

std::vector<Technique> techniques_for(const Registry<Technique>& registry, LadderGoal goal) {
  std::vector<Technique> result;
  for (const Technique& row : registry.rows()) {
    const bool costs_time = expected_effect(row.expected.time_factor) == Effect::costs;
    if (goal == LadderGoal::memory ? row.saves_memory : !(row.saves_memory && costs_time)) result.push_back(row);
  }
  return result;
}

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

RatioInterval level_of(const std::vector<double>& values) {
  return ratio_of(values, std::vector<double>(values.size(), 1.0));
}

Effect measured_effect(const RatioInterval& speedup) {
  if (!std::isfinite(speedup.low)) return measured_effect(speedup.ratio);
  if (!speedup.excludes_one()) return Effect::none;
  return speedup.low > 1 ? Effect::helps : Effect::costs;
}

Effect measured_effect(double memory_ratio) {
  return std::isfinite(memory_ratio) ? expected_effect(1 / memory_ratio) : Effect::unknown;
}

Effect expected_effect(double factor) {
  if (factor < 1 - noticeable) return Effect::helps;
  return factor > 1 + noticeable ? Effect::costs : Effect::none;
}

void fill_target(RungResult& result, const std::vector<TargetRun>& runs) {
  const std::vector<double> accuracies = values_of(runs, [](const TargetRun& run) { return run.accuracy; });
  result.accuracy = median(accuracies);
  result.accuracy_range = range_of(accuracies);
  result.curves.clear();
  result.peak_bytes = 0;
  result.shares = step_shares(runs);
  for (const TargetRun& run : runs) {
    result.peak_bytes = std::max(result.peak_bytes, run.peak_bytes);
    result.curves.push_back({.seed = run.seed, .points = run.points});
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

}  // namespace bellows::train
