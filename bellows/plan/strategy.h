#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/plan/decision.h"

namespace bellows::train {

/// The predicted memory and exchange of one strategy.
struct StrategyRow {
  MemoryOptions measures;     ///< the ZeRO stage (0: DDP), and additional memory techniques
  std::string data_parallel;  ///< value of the recipe key: "ddp", "zero1", "zero2" or "zero3"
  std::string mesh = {};      ///< value of the recipe key; not empty for tensor, context and pipeline parallelism
  std::string techniques;     ///< additional techniques, such as "activation checkpointing"; empty if there are none
  std::string needs;          ///< setting that the recipe must change first: "gradient_compression: none", or empty
  int64_t bytes_per_rank = 0;
  bool fits = false;            ///< whether these bytes fit into the memory of one rank
  int64_t bytes_sent = 0;       ///< bytes that one rank sends per step; it also receives this many
  double exchange_seconds = 0;  ///< bytes_sent / bandwidth; 0 if the bandwidth is unknown
  double compute_seconds = 0;   ///< time of a step without the exchange; 0 if it is unknown
  std::string title() const;    ///< for example "ZeRO-3 with activation checkpointing"
  /// Returns the axis of `mesh`: "tensor", "context" or "pipeline", or "" if there is no mesh.
  std::string axis() const { return mesh.substr(0, mesh.find(':')); }
};

/// The strategies for a number of ranks, and the choice among them.
struct StrategyChoice {
  int64_t ranks = 0;
  int64_t capacity = 0;         ///< memory of one rank in bytes
  double bytes_per_second = 0;  ///< bandwidth of the link of one rank; 0 if it is unknown
  /// DDP and ZeRO-1 to ZeRO-3, then ZeRO-3 with techniques, the cheapest first, then tensor, context and pipeline
  /// parallelism and offloading.
  std::vector<StrategyRow> rows;
  std::optional<size_t> chosen{};  ///< index in `rows`; not set if no strategy fits
  int64_t needed_ranks = 0;        ///< if no strategy fits: number of ranks on which `needed` would fit; 0 if unknown
  std::string needed;              ///< title of a strategy with ZeRO-3
  std::string reason;              ///< one or two sentences
};

/// Returns the bytes that each rank sends in one step, if the ranks form a ring. For n bytes of gradients and W ranks,
/// the result is a multiple of (W - 1)/W · n. With k forward passes per step (gradient accumulation), the factors are:
/// - DDP: 2, for one all-reduce of the gradients.
/// - ZeRO-1: 3, because DistributedDataParallel averages the gradients, and step() gathers the updated parameters.
/// - ZeRO-2: 1 + k, because each backward sends the gradients once.
/// - ZeRO-3: 3 k, because forward and backward also gather the parameters. 2 k if parameters stay in memory between
///   forward and backward. This is an upper limit: backward does not gather buckets that are still in memory.
/// Params: stage – 0 for DDP, 1 to 3 for ZeRO
/// Ref:    parallel/zero/zero_optimizer.h; tests/parallel/cost_test.cpp compares these factors with counters
int64_t bytes_sent_per_step(int stage, int64_t ranks, int64_t gradient_bytes, int64_t passes = 1,
                            bool reshard_after_forward = true);

/// Chooses how to train on several ranks. The choice follows DeepSpeed's order: DDP if it fits, otherwise the lowest
/// ZeRO stage that fits, otherwise ZeRO-3 with the memory techniques of predict_techniques(). Of these, the choice is
/// the technique with the lowest expected cost that fits. If no single technique is enough, the choice is the
/// combination with the lowest expected cost that fits. If none fits, the choice is tensor parallelism
/// (tensor_strategy.h) or context parallelism (context_strategy.h): of those that fit, the one that sends less.
/// Otherwise, it is a pipeline (pipeline_strategy.h). If none of them fits, the choice is ZeRO-3 with offloaded shards,
/// and with other techniques if necessary. Techniques that change the optimizer or the batch size are not considered.
///
/// The recipe must not have a `mesh`: every strategy shards over all ranks. The bytes of DDP and ZeRO-1 do not include
/// the effect of `gradient_compression`.
///
/// The cost is expected_cost(). If the bandwidth and the time of a step are known, it also includes the exchange.
///
/// If no strategy fits, the result states the smallest power of two, up to 1024, at which ZeRO-3 would fit with the
/// same batch per rank. If ZeRO-3 alone would never fit, the result states this number for ZeRO-3 with techniques.
/// Params: situation – uses the capacity, gradient bytes, time of a step and bf16 support. If `step_seconds` is 0, the
///                     times of computation are unknown
///         ranks – number of ranks, at least 2. Each rank processes the plan's batch
///         link_bytes_per_second – bandwidth at which one rank sends; 0 if it is unknown
/// Cost:   a replay of the plan's step for each row; up to several hundred replays if techniques must be combined
/// Throws: c10::ValueError if an argument is out of range
/// Ref:    docs/strategies.md; arXiv:1910.02054
StrategyChoice choose_strategy(const MemoryPlan& plan, const Situation& situation, int64_t ranks,
                               double link_bytes_per_second);

}  // namespace bellows::train
