#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/plan/plan.h"

namespace bellows::train {

/// What can be done about a step's memory, all at once. Nothing is done by default.
struct MemoryOptions {
  enum class Precision { as_it_is, bf16, bf16_weights };                     ///< autocast (O1), low weights (O2)
  enum class State { as_it_is, eight_bit, four_bit, factored, one_moment };  ///< of the moments; Adafactor; SGD's
  /// What becomes of activations.
  enum class Saved { as_it_is, in_bf16, in_int8, in_int4, half_recomputed, recomputed, offloaded };
  Precision precision = Precision::as_it_is;
  State state = State::as_it_is;
  Saved saved = Saved::as_it_is;
  int64_t accumulate = 1;    ///< the batch in so many parts, one update
  int64_t shrink = 1;        ///< a batch so many times smaller
  int stage = 0;             ///< ZeRO-1, ZeRO-2
  int64_t ranks = 1;         ///< that share what the stage says
  bool in_backward = false;  ///< a step for each gradient as it comes
  bool operator==(const MemoryOptions&) const = default;
};

/// The peak with these measures: the lives of the plan's tensors replayed with other sizes. N parameters, n ranks.
/// - bf16: the plan's `in_bf16` where there is one; else what autograd saves in fp32, and temporaries that grow with the batch,
///   ½; 2 N of cast weights.
/// - bf16 weights: as bf16, weights and gradients ½, 4 N of masters, no casts.
/// - 8-bit state: (1 + 4/256) bytes a moment and parameter, 4-bit (1/2 + 4/128); Adafactor: 4 bytes a row and a column;
///   SGD: 4 N.
/// - accumulation in k: the batch's k-th part, and gradients that live through all of the step.
/// - saved in bf16 ½ of fp32, in int8 (1 + 8/256) bytes an element, in int4 (½ + 8/256), offloaded nothing; but all of a tensor
///   for eight events behind its making and before its end.
/// - recomputed: of each block ("layer.3", "layer1.0") one tensor of its median size; the others for eight events behind their
///   making, and from the block's first use in backward on. By half: half of those others stays.
/// - step in backward: a gradient is there for eight events.
/// - ZeRO-1: state and masters 1/n; ZeRO-2: gradients too, and up to four buckets.
/// Numerics: against plans of their own to 3 %, activations in fewer bits to 10 % (tests/plan/plan_test.cpp), but bf16 without
///           `in_bf16`: up to 20 % too little; offload and ZeRO are formulas only
int64_t peak_with(const MemoryPlan& plan, const MemoryOptions& measures);

/// One row of what could be done.
struct PredictedTechnique {
  std::string name;  ///< "bf16 autocast"
  MemoryOptions measures;
  int64_t peak_bytes = 0;
  double time_factor = 1;  ///< of a step, from the table of techniques; NaN: depends on the network
  std::string cost;        ///< in words: what it costs beside time; ""
};

/// Each technique alone, those that change something about this plan, in the order in which they are worth a try.
/// Params: ranks – of ZeRO, at least 2
std::vector<PredictedTechnique> predict_techniques(const MemoryPlan& plan, int64_t ranks = 2);

/// What the measures do to the time of a step: the product of what the table of techniques expects of each.
/// Params: bf16_arithmetic – the processor has it
double time_factor(const MemoryOptions& measures, bool bf16_arithmetic);

/// How much they round, in steps: one for each of bf16 products, bf16 weights and what is kept in 16 or 8 bits, two for what
/// is kept in 4. 0: the same mathematics.
int roughness(const MemoryOptions& measures);

/// "bf16 autocast, accumulation of 4, recompute"; "nothing".
std::string to_string(const MemoryOptions& measures);

}  // namespace bellows::train
