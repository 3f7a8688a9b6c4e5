#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bellows/plan/memory_options.h"

namespace bellows::train {

/// The inputs of decide(), in addition to the peak.
struct Situation {
  int64_t capacity = 0;         ///< memory of one device in bytes
  int64_t batch = 1;            ///< batch size of one rank, which limits the number of gradient accumulation steps
  int64_t ranks = 1;            ///< number of available devices
  int64_t gradient_bytes = 0;   ///< bytes that the ranks exchange per step
  double bandwidth = 1e9;       ///< bytes per second between ranks
  double step_seconds = 0;      ///< time of a step on one rank; 0 if unknown
  bool fp32 = true;             ///< whether the current precision is fp32
  bool bf16_arithmetic = true;  ///< whether the processor supports bf16 arithmetic
  bool adam = true;             ///< whether the current optimizer has two moments per parameter
};

/// The recommendation and its reasons.
struct Decision {
  bool fits = false;  ///< whether the step fits with the recommended measures
  MemoryOptions measures;
  std::string strategy;  ///< "alone", "ddp", "ddp with a hook", "zero1" to "zero3", "none"
  int64_t peak_bytes = 0;
  std::vector<std::string> reasons;  ///< one sentence per reason
  std::string to_string() const;     ///< for example "bf16 autocast, gradient accumulation over 4 steps; alone"
};

/// Recommends a parallelism strategy and memory measures.
///
/// If the step fits, no measures are recommended, because sharding, activation checkpointing and gradient accumulation
/// would only make it slower. With several ranks, DDP is recommended if a step takes more than 10 ms and the exchange
/// is shorter than backward. The exchange is estimated as 3 · gradient bytes / bandwidth, and backward as two thirds of
/// a step.
///
/// If the step does not fit, measures are added one by one until it fits. The order is bf16 (if the processor supports
/// it), gradient accumulation, 8-bit optimizer state, activation checkpointing, ZeRO-1, ZeRO-2, offloading. Measures
/// that turn out to be unnecessary are then removed.
/// Params: peak – returns the peak of one rank with the given measures, for example peak_with() or a formula
Decision decide(const Situation& situation, const std::function<int64_t(const MemoryOptions&)>& peak);
Decision decide(const MemoryPlan& plan, const Situation& situation);
/// Returns the situation that belongs to the plan, with this machine's memory and bf16 support.
Situation situation_of(const MemoryPlan& plan);

/// A recipe whose step fits into a number of bytes.
struct FittingRecipe {
  Recipe recipe;
  MemoryPlan plan;         ///< from dry runs of this recipe
  double time_factor = 1;  ///< predicted time per sample, relative to the original recipe
  std::string changes;     ///< description of the changes
};

/// Returns the plan's recipe if it fits, and otherwise the first of plan_candidates() that fits. Each candidate is
/// confirmed by a separate plan. Candidates with offloading are skipped, because their savings can only be measured.
/// Returns: nothing if no candidate fits
std::optional<FittingRecipe> cheapest_that_fits(const MemoryPlan& plan, int64_t bytes);

}  // namespace bellows::train
