#include "bellows/ladder/results.h"

#include <algorithm>
#include <cmath>

#include "bellows/core/error.h"

namespace bellows::train {

namespace {

constexpr double noticeable = 0.02;  // a change below this is called none
constexpr double saving = 1.01;      // of the peak, before memory counts as saved
constexpr double one_seed = 1.1;     // a single pair of runs has to differ by this much

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
  static constexpr std::string_view words[] = {
      "kept",           "no effect", "slower",      "more memory", "misses the target", "later at target",
      "does not apply", "failed",    "not measured"};
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

Effect measured_effect(const RatioInterval& speedup) {
  if (!std::isfinite(speedup.low)) {
    if (speedup.ratio > one_seed) return Effect::helps;
    return speedup.ratio < 1 / one_seed ? Effect::costs : Effect::unknown;
  }
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

namespace {

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

namespace {

std::string missed(const TargetRun& run) {
  return c10::str("ended at ", run.accuracy, " after ", format_seconds(run.seconds), " of training");
}

}  // namespace

void judge_by_rate(RungResult& result, const PairedRuns& runs) {
  const RatioInterval& speedup = result.speedup;
  if (!all_reached(runs.rung)) {
    result.verdict = Verdict::misses_target;
    result.note = missed(runs.rung.back());
  } else if (!speedup.excludes_one()) {
    result.verdict = Verdict::no_effect;
    result.note = "the 90 % interval of the ratio contains 1";
  } else if (speedup.high < 1) {
    result.verdict = Verdict::slower;
    result.note = "the 90 % interval of the ratio lies below 1";
  } else if (!runs.below.empty() && median_seconds(runs.rung) >= median_seconds(runs.below)) {
    result.verdict = Verdict::later_at_target;
    result.note = c10::str("more samples a second, but the target took ", format_seconds(median_seconds(runs.rung)),
                           " instead of ", format_seconds(median_seconds(runs.below)));
  } else {
    result.verdict = Verdict::kept;
  }
}

void judge_by_target(RungResult& result, const PairedRuns& runs) {
  if (!all_reached(runs.rung)) {
    result.verdict = Verdict::misses_target;
    result.note = missed(runs.rung.back());
  } else if (measured_effect(result.speedup) == Effect::helps) {
    result.verdict = Verdict::kept;
  } else if (median_seconds(runs.rung) >= median_seconds(runs.below)) {
    result.verdict = Verdict::later_at_target;
    result.note = c10::str("the target took ", format_seconds(median_seconds(runs.rung)), " instead of ",
                           format_seconds(median_seconds(runs.below)));
  } else {
    result.verdict = Verdict::no_effect;
    result.note = "the target came sooner, but not with every seed by so much that it could not be chance";
  }
}

void judge_by_memory(RungResult& result) {
  if (result.verdict == Verdict::misses_target) return;
  result.note.clear();
  if (result.memory_ratio > saving) {
    result.verdict = Verdict::kept;
  } else if (result.memory_ratio < 1 / saving) {
    result.verdict = Verdict::more_memory;
    result.note = "the peak is higher than that of the rung below";
  } else {
    result.verdict = Verdict::no_effect;
    result.note = "the peak changed by less than 1 %";
  }
}

}  // namespace bellows::train
