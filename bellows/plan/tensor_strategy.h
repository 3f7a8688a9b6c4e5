#pragma once

#include <cstdint>
#include <optional>

#include "bellows/plan/strategy.h"

namespace bellows::train {

/// Estimates tensor parallelism on all ranks: each layer of a transformer is divided, and all ranks read the complete
/// batch. Weights, gradients and optimizer state take 1/n of their size. Activations take the share that divided layers
/// leave, for attention over T tokens with a heads and width h: (10 + (24 + 5 a T / h) / n) / (34 + 5 a T / h). Each
/// layer all-reduces its activations four times per pass, and six times with `recompute: blocks`.
/// Params:  ranks – number of ranks, at least 2. Each rank processes the batches of all of them
/// Returns: nothing if the model's size is unknown, the ranks do not divide the heads and the inner width, or the recipe
///          has a setting that tensor parallelism refuses
/// Numerics: an estimate, which is not compared with measurements
/// Ref:     arXiv:2205.05198, section 4
std::optional<StrategyRow> tensor_strategy(const MemoryPlan& plan, const Situation& situation, int64_t ranks,
                                           double link_bytes_per_second);

}  // namespace bellows::train
