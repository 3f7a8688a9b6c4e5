#pragma once

#include <string_view>

#include "bellows/core/stats.h"

namespace bellows::train {

struct LadderOptions;
struct PairedRuns;
struct RungResult;

/// The result for a technique: kept, or the reason why it was not kept.
enum class Verdict {
  kept,
  no_effect,
  slower,
  more_memory,
  misses_target,
  later_at_target,
  less_accurate,  ///< faster, but the accuracy or the outputs differ too much
  does_not_apply,
  failed,  ///< a run ended with an error
  not_measured
};
/// "kept", "no effect", "slower", "more memory", "did not reach the target", "slower to target", "less accurate", "does
/// not apply", "failed", "not measured".
std::string_view to_string(Verdict verdict);

/// The effect of a technique on time or memory.
enum class Effect { helps, none, costs, unknown };
/// Returns "yes", "no", "costs" or "-", which answers the question "Does it help?".
std::string_view to_string(Effect effect);
/// Params: factor – factor of an Expectation. A change of at most 2 % counts as no effect
Effect expected_effect(double factor);

/// Returns `helps` if the interval is above 1. If there is no interval, returns `helps` if the ratio of the single pair
/// of runs is above 1.1.
Effect measured_effect(const RatioInterval& speedup);
Effect measured_effect(double memory_ratio);

// The following functions decide whether a rung is kept. They set its `verdict` and, if it is not kept, its `note`.

/// Judges the rung by samples per second. If the rung has runs to the target, these are judged, too.
void judge_by_rate(RungResult& result, const PairedRuns& runs);
void judge_by_target(RungResult& result, const PairedRuns& runs);
/// Judges the rung by its peak. A rung that did not reach the target keeps that verdict.
void judge_by_memory(RungResult& result);
/// Judges the rung by its speedup. Sets the verdict `kept` if the rung is faster.
void judge_by_speed(RungResult& result);
/// Judges a faster rung of a ladder for inference by its accuracy. Without an accuracy, judges it by the difference of its
/// outputs.
/// Params: start – rung 0
void judge_by_accuracy(RungResult& result, const RungResult& start, const LadderOptions& options);

}  // namespace bellows::train
