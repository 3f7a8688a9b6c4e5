#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bellows/plan/memory_options.h"

namespace bellows::train {

/// What the decision depends on beside the peak.
struct Situation {
  int64_t capacity = 0;         ///< bytes of one device
  int64_t batch = 1;            ///< of one rank: how far it can be divided
  int64_t ranks = 1;            ///< devices at hand
  int64_t gradient_bytes = 0;   ///< that ranks exchange
  double bandwidth = 1e9;       ///< bytes a second between ranks
  double step_seconds = 0;      ///< of one step alone; 0: not known
  bool fp32 = true;             ///< precision so far
  bool bf16_arithmetic = true;  ///< the processor has it
  bool adam = true;             ///< two moments a parameter so far
};

/// What to do, and why.
struct Decision {
  bool fits = false;  ///< with the measures
  MemoryOptions measures;
  std::string strategy;  ///< "alone", "ddp", "ddp with a hook", "zero1", "zero2", "none"
  int64_t peak_bytes = 0;
  std::vector<std::string> reasons;  ///< a sentence each
  std::string to_string() const;     ///< "bf16 autocast, accumulation of 4; alone"
};

/// The documents' trees. It fits: keep it simple, a sharded small model only gets slower; several ranks share the batch
/// (DDP) where a step is longer than 10 ms and the exchange, 3 · gradients / bandwidth, is shorter than backward, two
/// thirds of a step. It does not: in this order, until it fits, bf16 (where the processor has it), accumulation, 8-bit
/// state, recompute, ZeRO-1, ZeRO-2, offload. What turns out not to be needed is left out again.
/// Params: peak – of one rank, with measures: peak_with(), or a formula
Decision decide(const Situation& situation, const std::function<int64_t(const MemoryOptions&)>& peak);
Decision decide(const MemoryPlan& plan, const Situation& situation);
/// The plan's own figures; this machine's memory, and its bf16.
Situation situation_of(const MemoryPlan& plan);

/// A recipe whose step fits into so many bytes.
struct FittingRecipe {
  Recipe recipe;
  MemoryPlan plan;         ///< from dry runs of this very recipe
  double time_factor = 1;  ///< of the time a sample, predicted
  std::string changes;     ///< in words
};

/// The plan's own recipe where it fits; else the first of plan_candidates() that does, but none of
/// those that offload: how much that saves is measured, not predicted. A candidate is planned anew before it is believed.
/// Returns: nothing – none fits
std::optional<FittingRecipe> cheapest_that_fits(const MemoryPlan& plan, int64_t bytes);

}  // namespace bellows::train
