#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/plan/plan.h"

namespace bellows::train {

/// Measures that reduce the memory of a step. By default, none is used.
struct MemoryOptions {
  /// Autocast (O1), low-precision weights (O2).
  enum class Precision { as_it_is, bf16, bf16_weights };
  /// Quantized moments; Adafactor; one moment like SGD.
  enum class State { as_it_is, eight_bit, four_bit, factored, one_moment };
  /// How activations are stored.
  enum class Saved { as_it_is, in_bf16, in_int8, in_int4, half_recomputed, recomputed, offloaded };
  Precision precision = Precision::as_it_is;
  State state = State::as_it_is;
  Saved saved = Saved::as_it_is;
  int64_t accumulate = 1;    ///< number of parts of the batch, with one update
  int64_t shrink = 1;        ///< factor by which the batch is smaller
  int stage = 0;             ///< ZeRO stage: 1 or 2
  int64_t ranks = 1;         ///< number of ranks that share the state
  bool in_backward = false;  ///< optimizer in backward
  bool operator==(const MemoryOptions&) const = default;
};

/// Predicts the peak with these measures by replaying the lifetimes of the plan's tensors with changed sizes. For N
/// parameters and n ranks:
/// - bf16: uses the plan's `in_bf16` if there is one. Else ½ for fp32 activations and for temporaries that grow with
///   the batch; 2 N for cast weights.
/// - bf16 weights: like bf16; ½ for weights and gradients, 4 N for master weights, no casts.
/// - optimizer state: 8-bit (1 + 4/256) bytes per moment and parameter, 4-bit (1/2 + 4/128); Adafactor: 4 bytes per row
///   and column; SGD: 4 N.
/// - gradient accumulation over k steps: the k-th part of the batch; gradients live during the whole step.
/// - activations: bf16 ½ of fp32, int8 (1 + 8/256) bytes per element, int4 (½ + 8/256), offloaded 0. A tensor has its
///   full size for eight events after its creation and before its end.
/// - activation checkpointing: of each block ("layer.3", "layer1.0"), one tensor of median size stays. The others live
///   for eight events after their creation, and again in backward from the first use of the block. Selective: half of
///   their bytes stays.
/// - optimizer in backward: a gradient lives for eight events.
/// - ZeRO-1: 1/n of state and master weights; ZeRO-2: also 1/n of gradients, plus up to four buckets.
/// Numerics: within 3 % of a separate plan with these measures, 10 % for low-bit activations
///           (tests/plan/plan_test.cpp). bf16 without `in_bf16`: up to 20 % too low. Offloading and ZeRO are formulas
///           only
int64_t peak_with(const MemoryPlan& plan, const MemoryOptions& measures);

/// The predicted effect of one technique.
struct PredictedTechnique {
  std::string name;  ///< "bf16 autocast"
  MemoryOptions measures;
  int64_t peak_bytes = 0;
  double time_factor = 1;  ///< of a step, from the table of techniques; NaN: depends on the network between ranks
  std::string cost;        ///< costs in addition to time; "" if there are none
};

/// The techniques that change this plan, each on its own, in the order in which to try them.
/// Params: ranks – for ZeRO, at least 2
std::vector<PredictedTechnique> predict_techniques(const MemoryPlan& plan, int64_t ranks = 2);

/// The expected time of a step relative to that without measures: the product of the table's factors.
/// Params: bf16_arithmetic – the processor supports bf16
double time_factor(const MemoryOptions& measures, bool bf16_arithmetic);

/// Estimates the rounding of the measures: 1 each for bf16 matmuls, bf16 weights, and 16-bit or 8-bit state or
/// activations; 2 for 4-bit ones. 0 means the same mathematics.
int roughness(const MemoryOptions& measures);

/// "bf16 autocast, gradient accumulation over 4 steps, activation checkpointing"; "nothing".
std::string to_string(const MemoryOptions& measures);

}  // namespace bellows::train
