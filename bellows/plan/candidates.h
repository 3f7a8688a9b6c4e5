#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/plan/memory_options.h"

namespace bellows::train {

/// The plan's recipe with memory measures that are available as recipe keys.
struct PlanCandidate {
  Recipe recipe;
  MemoryOptions measures;
  std::string changes;                  ///< description, or "nothing"
  std::vector<std::string> techniques;  ///< rows of the table of techniques that it uses
  double time_factor = 1;               ///< time per sample, as the table expects
  int64_t predicted_bytes = 0;          ///< of one rank, including the batches that a loader prefetches
  bool other_training = false;          ///< uses another optimizer; only tried if nothing else fits
};

/// The expected time, plus 6 % per step of roughness(). At nearly equal times, bit-identical measures precede rounding
/// ones, and 8 bits precede 4.
double expected_cost(const PlanCandidate& candidate);

/// All combinations of precision, optimizer state, handling of activations and accumulation steps. Each is applied as
/// in the table of techniques, if it fits this recipe and machine. The first is the plan's recipe. The others are
/// sorted by expected_cost(); those with another optimizer come last.
std::vector<PlanCandidate> plan_candidates(const MemoryPlan& plan);

/// Like plan_candidates(plan), from a recipe. Params: length – see StepSize
/// Cost, Throws: like plan_memory()
std::vector<PlanCandidate> plan_candidates(const Recipe& recipe, int64_t length);

}  // namespace bellows::train
