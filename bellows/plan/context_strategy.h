#pragma once

#include <cstdint>
#include <optional>

#include "bellows/plan/strategy.h"

namespace bellows::train {

/// Estimates context parallelism on n ranks, which divide each sequence of T tokens. They compute the batches of all
/// ranks one after the other. A step therefore has n times as many gradient accumulation steps, each with the batch b
/// of one rank.
///
/// Memory: weights, gradients, optimizer state, embeddings and the head stay complete. Activations of the layers take
/// 1/n of their size.
/// Bytes: the keys and values of a layer have K = 2 · b · T · width numbers per rank and step. Each rank sends
/// (n - 1) · K numbers in forward, in backward, and when blocks are recomputed. It also sends (n - 1) · K gradients in
/// fp32. Gathering the output of the last layer sends (n - 1) · K numbers in total. DDP's all-reduce is added.
/// Time: each rank computes the head of a language model for all tokens, so this part takes n times as long.
/// Params:  ranks – number of ranks, at least 2. Each rank processes the batches of all of them
/// Returns: nothing if the model's size is unknown, if 2 n does not divide the length, or if the recipe has a setting
///          that context parallelism refuses
/// Numerics: an estimate, which is not compared with measurements. It does not include the masks of attention dropout,
///          which each rank draws for all tokens
/// Ref:     parallel/context/context_attention.h; docs/strategies.md
std::optional<StrategyRow> context_strategy(const MemoryPlan& plan, const Situation& situation, int64_t ranks,
                                            double link_bytes_per_second);

}  // namespace bellows::train
