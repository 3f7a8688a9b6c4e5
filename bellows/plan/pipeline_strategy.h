#pragma once

#include <cstdint>
#include <optional>

#include "bellows/plan/strategy.h"

namespace bellows::train {

/// Estimates a pipeline of all ranks, with one stage of layers per rank and the schedule 1F1B
/// (parallel/pipeline/schedule.h). A step has four micro-batches per rank, or one per sample if there are fewer samples.
/// Weights, gradients and optimizer state take the share of the first stage, which also has the embedding. Activations are
/// those of the micro-batches in flight. The time of a step includes the bubble of the schedule.
/// Params:  ranks – number of ranks, at least 2. Each rank processes the batches of all of them
/// Returns: nothing if the model's size is unknown, it has fewer layers than ranks, or the recipe has a setting that
///          pipeline parallelism refuses
/// Numerics: an estimate, which is not compared with measurements
std::optional<StrategyRow> pipeline_strategy(const MemoryPlan& plan, const Situation& situation, int64_t ranks,
                                             double link_bytes_per_second);

/// The same without asking whether the recipe accepts the mesh.
std::optional<StrategyRow> estimate_pipeline(const MemoryPlan& plan, const Situation& situation, int64_t ranks,
                                             double link_bytes_per_second);

}  // namespace bellows::train
