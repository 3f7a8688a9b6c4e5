#include "bellows/ladder/verdict.h"

#include <c10/util/StringUtil.h>

#include <cmath>

#include "bellows/ladder/results.h"

namespace bellows::train {

namespace {

constexpr double noticeable = 0.02;  // a change below this is called none
constexpr double saving = 1.01;      // of the peak, before memory counts as saved
constexpr double one_seed = 1.1;     // a single pair of runs has to differ by this much

std::string missed(const TargetRun& run) {
  return c10::str("ended at ", run.accuracy, " after ", format_seconds(run.seconds), " of training");
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
