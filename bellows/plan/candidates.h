#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/plan/memory_options.h"

namespace bellows::train {

/// A recipe that is the plan's with some measures, those that recipes have keys for.
struct PlanCandidate {
  Recipe recipe;
  MemoryOptions measures;
  std::string changes;                  ///< in words; "nothing"
  std::vector<std::string> techniques;  ///< rows of the table of techniques that it takes
  double time_factor = 1;               ///< of the time a sample, as the table expects
  int64_t predicted_bytes = 0;          ///< of one rank, with the batches that a loader makes ahead
  bool other_training = false;          ///< another optimizer: only where nothing else fits
};

/// The time expected, and 6 % of it for each step of roughness(): at nearly equal times what keeps the bits comes before what
/// rounds, and 8 bits before 4.
double expected_cost(const PlanCandidate& candidate);

/// What precision, bits of the state, what becomes of activations and parts of the batch give together, each as the table
/// of techniques says and where it applies to this recipe on this machine. The first is the plan's recipe; then by
/// expected_cost(), those that train otherwise last.
std::vector<PlanCandidate> plan_candidates(const MemoryPlan& plan);

/// The same from a recipe. Params: length – as in StepSize
/// Cost, Throws: as plan_memory()
std::vector<PlanCandidate> plan_candidates(const Recipe& recipe, int64_t length);

}  // namespace bellows::train
