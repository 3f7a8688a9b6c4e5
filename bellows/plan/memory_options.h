#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/plan/plan.h"

namespace bellows::train {

/// Measures that reduce the memory of a step. With the default values, no measure is used.
struct MemoryOptions {
  /// `bf16` is autocast (O1), and `bf16_weights` means low-precision weights (O2).
  enum class Precision { as_it_is, bf16, bf16_weights };
  /// Quantized moments (8 or 4 bits), factored moments (Adafactor), or one moment (like SGD).
  enum class State { as_it_is, eight_bit, four_bit, factored, one_moment };
  /// How activations are stored.
  enum class Saved { as_it_is, in_bf16, in_int8, in_int4, half_recomputed, recomputed, offloaded };
  Precision precision = Precision::as_it_is;
  State state = State::as_it_is;
  Saved saved = Saved::as_it_is;
  int64_t accumulate = 1;    ///< number of gradient accumulation steps
  int64_t shrink = 1;        ///< factor by which the batch is smaller
  int stage = 0;             ///< ZeRO stage, 1 to 3; 0: no ZeRO
  int64_t ranks = 1;         ///< number of ranks that share the state
  bool in_backward = false;  ///< whether the optimizer runs in backward
  /// With ZeRO-3: whether all shards and the optimizer state are offloaded, to files or from an accelerator to the host.
  bool offloaded_shards = false;
  bool operator==(const MemoryOptions&) const = default;
};

/// Predicts the peak with the given measures. It replays the lifetimes of the plan's tensors with changed sizes. For N
/// parameters and n ranks, the measures change these sizes as follows:
/// - bf16: the plan's `in_bf16` is used if it exists. Otherwise, fp32 activations and temporaries that grow with the
///   batch take ½ of their size, and cast weights take 2 N bytes.
/// - bf16 weights: like bf16, but weights and gradients also take ½, master weights take 4 N bytes, and there are no
///   cast weights.
/// - Optimizer state: per moment and parameter, 8-bit state takes 1 + 4/256 bytes and 4-bit state takes 1/2 + 4/128
///   bytes. Adafactor takes 4 bytes per row and column. SGD takes 4 N bytes.
/// - Gradient accumulation over k steps: the batch is divided by k, and gradients live during the whole step.
/// - Activations: bf16 takes ½ of fp32, int8 takes 1 + 8/256 bytes per element, int4 takes ½ + 8/256 bytes per element,
///   and offloading takes 0 bytes. A tensor has its full size for eight events after it is created and for eight events
///   before it is freed.
/// - Activation checkpointing: in each block ("layer.3", "layer1.0"), one tensor of median size stays. The other
///   tensors live for eight events after they are created, and again in backward from the first use of the block. With
///   selective checkpointing, half of their bytes stay.
/// - Optimizer in backward: a gradient lives for eight events.
/// - ZeRO-1: optimizer state and master weights take 1/n of their size. ZeRO-2: gradients take 1/n, too, and up to four
///   buckets are added. ZeRO-3: weights take 1/n, too, and two buckets are added.
/// - Offloaded shards: weights, gradients, optimizer state and master weights take 0 bytes. On the CPU, the windows of
///   the files are added: up to 64 MiB for weights, 64 MiB for gradients and 128 MiB for state.
/// Numerics: within 3 % of a separate plan with these measures, or within 10 % for low-bit activations
///           (tests/plan/plan_test.cpp). Without `in_bf16`, the peak with bf16 can be up to 20 % too low. For
///           offloading and ZeRO, only the formulas above are used
int64_t peak_with(const MemoryPlan& plan, const MemoryOptions& measures);

/// Changes a step as gradient accumulation does: the gradients of earlier batches exist during the whole step, and
/// those of a batch are added to them.
void keep_gradients(inspect::TensorTimeline& step);

/// The predicted effect of one technique.
struct PredictedTechnique {
  std::string name;  ///< for example "bf16 autocast"
  MemoryOptions measures;
  int64_t peak_bytes = 0;
  /// Factor for the time of a step, from the table of techniques. NaN if it depends on the network between the ranks.
  double time_factor = 1;
  std::string cost;  ///< costs in addition to time; empty if there are none
};

/// Returns the techniques that change this plan, in the order in which to try them. Each technique is predicted
/// separately.
/// Params: ranks – number of ranks for ZeRO, at least 2
std::vector<PredictedTechnique> predict_techniques(const MemoryPlan& plan, int64_t ranks = 2);

/// Returns the expected time of a step relative to the time without measures. It is the product of the factors in the
/// table of techniques.
/// Params: bf16_arithmetic – whether the processor supports bf16 arithmetic
double time_factor(const MemoryOptions& measures, bool bf16_arithmetic);

/// Estimates how coarsely the measures round. bf16 autocast adds 1, and bf16 weights add 2. 8-bit optimizer state adds
/// 1, and 4-bit state adds 2. bf16 or 8-bit activations add 1, and 4-bit activations add 2. All other measures add 0.
int roughness(const MemoryOptions& measures);

/// For example "bf16 autocast, gradient accumulation over 4 steps, activation checkpointing", or "nothing".
std::string to_string(const MemoryOptions& measures);

}  // namespace bellows::train
