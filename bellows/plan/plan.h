#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/plan/step_model.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Bytes of activations that a module saves for backward.
struct ModuleBytes {
  std::string module;
  int64_t bytes = 0;
};

/// A tensor whose size no law of batch and length explains.
struct UnfittedTensor {
  std::string op, module;
  int64_t bytes = 0;  ///< as it was guessed
};

/// What a step of training will need, before it runs. Units: bytes of tensors, as inspect/memory.h counts them.
struct MemoryPlan {
  Recipe recipe;
  StepSize size;  ///< of one forward pass of one rank
  int64_t ranks = 1;
  int64_t parameters = 0;                ///< elements
  int64_t factored = 0;                  ///< elements of Adafactor's state: a row and a column of each matrix
  StepModel model;                       ///< the same step at other sizes
  inspect::TensorTimeline step;          ///< predicted
  inspect::TensorTimeline::Moment peak;  ///< of `step`
  int64_t communication = 0;             ///< of ZeRO-2: four buckets
  int64_t saved_by_sharding = 0;         ///< state and gradients that the other ranks have at the peak
  int64_t waiting = 0;                   ///< batches that a loader makes ahead
  double step_seconds = 0;               ///< of one forward and backward pass and update on this machine, about
  std::vector<StepSize> rehearsed;       ///< the steps that were taken
  models::Extent extent;                 ///< of the model; all 0: not known, it was run as it is
  models::Extent small_extent;           ///< of the model that was run in its place
  std::vector<ModuleBytes> activations;  ///< by module, in the order of the forward pass
  std::vector<UnfittedTensor> unfitted;  ///< those of at least a thousandth of the peak

  std::shared_ptr<const MemoryPlan> in_bf16{};  ///< the same under autocast, once rehearse_bf16() was called

  /// Of one rank, without the loader's batches.
  int64_t peak_bytes() const { return peak.bytes + communication - saved_by_sharding; }
};

/// Predicts the memory of a step from real steps of the same recipe with 2 and 3 samples, and of short sequences or small
/// pictures where the real ones are long (above 64) or large (above 64 pixels) and the model takes other ones: the bytes of
/// each tensor as a law of batch and length, and the lives of the tensors replayed at the size wanted.
///
/// A model whose extent is known (BERT, DistilBERT, GPT-2, by name or config.json) never is there in full: a small one takes
/// the steps (models/model_skeleton.h). Of all others weights, gradients and state are allocated, the full batch is not.
/// Params: size – batch: samples of a forward pass of all ranks together; length 0: what the model is meant for
/// Numerics: within 5 % of the measured peak for batch sizes from 4 on (tests/plan/plan_test.cpp, bench/plan)
/// Cost:     three or four small steps, and one of each other small extent
/// Throws:   c10::ValueError – as DryRun; a batch or ranks below 1, a batch that the ranks cannot share, a text longer than the
///           model's positions, an extent or a size beyond all machines
MemoryPlan plan_memory(const Recipe& recipe, const StepSize& size, int64_t ranks = 1);

/// Plans an fp32 recipe under bf16 autocast, too: what autocast keeps in fp32 no formula knows.
/// Cost: as plan_memory(); nothing for other recipes, and the second time
void rehearse_bf16(MemoryPlan& plan);

}  // namespace bellows::train
