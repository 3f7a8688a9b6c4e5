#pragma once

#include <string_view>

#include "bellows/core/stats.h"

namespace bellows::train {

struct PairedRuns;
struct RungResult;

/// Whether the ladder keeps a technique, or the reason why not.
enum class Verdict {
  kept,
  no_effect,
  slower,
  more_memory,
  misses_target,
  later_at_target,
  does_not_apply,
  failed,  ///< a run ended with an error
  not_measured
};
/// "kept", "no effect", "slower", "more memory", "did not reach the target", "slower to target", "does not apply",
/// "failed", "not measured".
std::string_view to_string(Verdict verdict);

/// The effect of a technique on time or memory.
enum class Effect { helps, none, costs, unknown };
/// "yes", "no", "costs", "-": the answer to "does it help?".
std::string_view to_string(Effect effect);
/// Params: factor – of an Expectation; a change below 2 % is no effect
Effect expected_effect(double factor);

/// "helps" if the interval is above 1; without an interval, if the ratio of a single pair of runs is large enough.
Effect measured_effect(const RatioInterval& speedup);
Effect measured_effect(double memory_ratio);

// The following functions decide whether a rung is kept. They set its `verdict` and, if it is not kept, its `note`.

/// Judges by samples per second, and also by the target if the rung has runs to it.
void judge_by_rate(RungResult& result, const PairedRuns& runs);
void judge_by_target(RungResult& result, const PairedRuns& runs);
/// Judges by the peak. A rung that did not reach the target keeps that verdict.
void judge_by_memory(RungResult& result);

}  // namespace bellows::train
