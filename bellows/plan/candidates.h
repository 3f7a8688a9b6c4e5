#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/plan/memory_options.h"

namespace bellows::train {

/// The plan's recipe, changed by memory-saving measures that recipe keys can express.
struct PlanCandidate {
  Recipe recipe;
  MemoryOptions measures;
  std::string changes;                  ///< description of the changes, or "nothing"
  std::vector<std::string> techniques;  ///< techniques that it uses, by their names in the table of techniques
  double time_factor = 1;  ///< expected time per sample, relative to the plan's recipe, from the table of techniques
  int64_t predicted_bytes = 0;  ///< predicted peak of one rank, including the batches that a loader prefetches
  /// Whether the candidate uses a different optimizer. Such candidates are tried only if no other candidate fits.
  bool other_training = false;
};

/// Returns the expected time, multiplied by 1.06 for each unit of roughness(). At nearly equal times, bit-identical
/// measures therefore come before measures that only round differently, and 8 bits come before 4 bits.
double expected_cost(const PlanCandidate& candidate);

/// Returns all combinations of precision, optimizer state, handling of activations and gradient accumulation. With one
/// rank, they also include the optimizer in backward. Combinations with a measure that does not apply to this recipe or
/// machine, or that changes nothing, are left out. The first candidate is the plan's recipe. The others are sorted by
/// expected_cost(), and candidates with a different optimizer come last.
std::vector<PlanCandidate> plan_candidates(const MemoryPlan& plan);

/// Like plan_candidates(plan), but makes the plan from a recipe.
/// Params: length – see StepSize
/// Cost:   like plan_memory()
/// Throws: like plan_memory()
std::vector<PlanCandidate> plan_candidates(const Recipe& recipe, int64_t length);

}  // namespace bellows::train
