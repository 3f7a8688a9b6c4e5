#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bellows/plan/memory_options.h"

namespace bellows::train {

/// The inputs of the decision in addition to the peak.
struct Situation {
  int64_t capacity = 0;         ///< memory of one device in bytes
  int64_t batch = 1;            ///< of one rank; limits the number of parts
  int64_t ranks = 1;            ///< available devices
  int64_t gradient_bytes = 0;   ///< bytes that the ranks exchange
  double bandwidth = 1e9;       ///< bytes per second between ranks
  double step_seconds = 0;      ///< of a step on one rank; 0: unknown
  bool fp32 = true;             ///< the current precision is fp32
  bool bf16_arithmetic = true;  ///< the processor supports bf16
  bool adam = true;             ///< the current optimizer has two moments per parameter
};

/// The recommendation and its reasons.
struct Decision {
  bool fits = false;  ///< with the measures
  MemoryOptions measures;
  std::string strategy;  ///< "alone", "ddp", "ddp with a hook", "zero1", "zero2", "none"
  int64_t peak_bytes = 0;
  std::vector<std::string> reasons;  ///< one sentence each
  std::string to_string() const;     ///< "bf16 autocast, gradient accumulation over 4 steps; alone"
};

/// Recommends a strategy.
///
/// If the step fits, no measures are taken, because sharding would only make it slower. Several ranks then use DDP if a
/// step takes more than 10 ms and the exchange (3 · gradients / bandwidth) is shorter than backward (two thirds of a
/// step).
///
/// If it does not fit, measures are added in this order until it fits: bf16 (if the processor supports it), gradient
/// accumulation, 8-bit optimizer state, activation checkpointing, ZeRO-1, ZeRO-2, offloading. Measures that turn out to
/// be unnecessary are removed again.
/// Params: peak – peak of one rank with given measures: peak_with(), or a formula
Decision decide(const Situation& situation, const std::function<int64_t(const MemoryOptions&)>& peak);
Decision decide(const MemoryPlan& plan, const Situation& situation);
/// The situation from the plan, with this machine's memory and bf16 support.
Situation situation_of(const MemoryPlan& plan);

/// A recipe whose step fits into a number of bytes.
struct FittingRecipe {
  Recipe recipe;
  MemoryPlan plan;         ///< from dry runs of this recipe
  double time_factor = 1;  ///< predicted time per sample, relative to the original recipe
  std::string changes;     ///< description
};

/// Returns the plan's own recipe if it fits; else the first of plan_candidates() that does. Each candidate is planned
/// again to confirm it. Candidates with offloading are skipped, because their savings can only be measured.
/// Returns: nothing if none fits
std::optional<FittingRecipe> cheapest_that_fits(const MemoryPlan& plan, int64_t bytes);

}  // namespace bellows::train
