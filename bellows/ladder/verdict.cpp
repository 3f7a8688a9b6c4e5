#include "bellows/ladder/verdict.h"

#include <c10/util/StringUtil.h>

#include <cmath>

#include "bellows/core/stats.h"
#include "bellows/ladder/results.h"

namespace bellows::train {

namespace {

constexpr double noticeable = 0.02;  // smaller changes count as no change
constexpr double saving = 1.01;      // the least reduction of the peak that counts as saved memory
constexpr double one_seed = 1.1;     // the least ratio of a single pair of runs that counts
constexpr double rounding = 1e-9;    // of differences of percentages

std::string missed(const TargetRun& run) {
  return c10::str("accuracy ", run.accuracy, " after ", format_seconds(run.seconds), " of training");
}

std::string longer_to_target(const PairedRuns& runs) {
  return c10::str("training took ", format_seconds(median_seconds(runs.rung)), " instead of ",
                  format_seconds(median_seconds(runs.below)));
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  static constexpr std::string_view words[] = {
      "kept",          "no effect",      "slower", "more memory", "did not reach the target", "slower to target",
      "less accurate", "does not apply", "failed", "not measured"};
  return words[static_cast<size_t>(verdict)];
}

std::string_view to_string(Effect effect) {
  static constexpr std::string_view words[] = {"yes", "no", "costs", "-"};
  return words[static_cast<size_t>(effect)];
}

Effect expected_effect(double factor) {
  if (factor < 1 - noticeable) return Effect::helps;
  return factor > 1 + noticeable ? Effect::costs : Effect::none;
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

void judge_by_rate(RungResult& result, const PairedRuns& runs) {
  if (!all_reached(runs.rung)) {
    result.verdict = Verdict::misses_target;
    result.note = missed(runs.rung.back());
    return;
  }
  judge_by_speed(result);
  if (result.kept() && !runs.below.empty() && median_seconds(runs.rung) >= median_seconds(runs.below)) {
    result.verdict = Verdict::later_at_target;
    result.note = "higher throughput, but " + longer_to_target(runs);
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
    result.note = longer_to_target(runs);
  } else {
    result.verdict = Verdict::no_effect;
    result.note = "reached the target earlier, but the difference is within noise";
  }
}

void judge_by_memory(RungResult& result) {
  if (result.verdict == Verdict::misses_target) return;
  result.note.clear();
  if (result.memory_ratio > saving) {
    result.verdict = Verdict::kept;
  } else if (result.memory_ratio < 1 / saving) {
    result.verdict = Verdict::more_memory;
    result.note = "the peak is higher than that of the previous configuration";
  } else {
    result.verdict = Verdict::no_effect;
    result.note = "the peak changed by less than 1 %";
  }
}

void judge_by_speed(RungResult& result) {
  if (!result.speedup.excludes_one()) {
    result.verdict = Verdict::no_effect;
    result.note = "the 90 % interval of the speedup contains 1";
  } else if (result.speedup.high < 1) {
    result.verdict = Verdict::slower;
    result.note = "the 90 % interval of the speedup is below 1";
  } else {
    result.verdict = Verdict::kept;
  }
}

void judge_by_accuracy(RungResult& result, const RungResult& start, const LadderOptions& options) {
  const double lost = 100 * (start.accuracy - result.accuracy);
  if (std::isfinite(start.accuracy)) {
    if (lost <= 100 * options.max_drop + rounding) return;
    result.note = c10::str("faster, but the accuracy falls by ", format_number("%.2f", lost), " points, more than ",
                           format_number("%.4g", 100 * options.max_drop));
  } else {
    if (result.output_difference <= options.max_difference) return;  // false for NaN
    result.note = c10::str("faster, but the outputs differ by ", format_number("%.3g", 100 * result.output_difference),
                           " %, more than ", format_number("%.3g", 100 * options.max_difference), " %");
  }
  result.verdict = Verdict::less_accurate;
}

}  // namespace bellows::train
