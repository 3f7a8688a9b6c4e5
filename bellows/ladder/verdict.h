#pragma once

#include <string_view>

#include "bellows/core/stats.h"

namespace bellows::train {

struct PairedRuns;
struct RungResult;

/// Whether the ladder keeps a technique, or why not.
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
/// "kept", "no effect", "slower", "more memory", "misses the target", "later at target", "does not apply", "failed",
/// "not measured".
std::string_view to_string(Verdict verdict);

/// What a technique does to time or to memory.
enum class Effect { helps, none, costs, unknown };
/// "yes", "no", "costs", "-": the answer to "does it help?".
std::string_view to_string(Effect effect);
/// Params: factor – an Expectation's; what changes less than 2 % is no effect
Effect expected_effect(double factor);

/// "helps" where the interval lies above 1; without an interval, where one pair of runs says enough.
Effect measured_effect(const RatioInterval& speedup);
Effect measured_effect(double memory_ratio);

// Whether a rung is kept: each sets the result's `verdict` and, where it is not, its `note`.

/// By samples per second, and by the target where a rung changes what is computed.
void judge_by_rate(RungResult& result, const PairedRuns& runs);
void judge_by_target(RungResult& result, const PairedRuns& runs);
/// By the peak; a rung that misses the target stays one.
void judge_by_memory(RungResult& result);

}  // namespace bellows::train
