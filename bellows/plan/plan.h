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

/// A tensor whose size no law of batch and length describes.
struct UnfittedTensor {
  std::string op, module;
  int64_t bytes = 0;  ///< estimated size
};

/// The predicted memory of a training step. Units: bytes of tensors, as counted by inspect/memory.h.
struct MemoryPlan {
  Recipe recipe;
  StepSize size;  ///< of one forward pass on one rank
  int64_t ranks = 1;
  int64_t parameters = 0;                ///< number of elements
  int64_t factored = 0;                  ///< elements of Adafactor's state: a row and a column of each matrix
  StepModel model;                       ///< predicts the step for other sizes
  inspect::TensorTimeline step;          ///< predicted
  inspect::TensorTimeline::Moment peak;  ///< of `step`
  int64_t communication = 0;             ///< of ZeRO-2: four buckets
  int64_t saved_by_sharding = 0;         ///< state and gradients that other ranks hold at the peak
  int64_t waiting = 0;                   ///< batches that a loader prefetches
  double step_seconds = 0;               ///< estimated time of forward, backward and update on this machine
  std::vector<StepSize> rehearsed;       ///< the sizes of the dry runs
  models::ModelSize model_size;          ///< all 0 if unknown; then the model itself was used
  models::ModelSize small_model_size;    ///< of the model skeleton that was used instead
  std::vector<ModuleBytes> activations;  ///< by module, in the order of the forward pass
  std::vector<UnfittedTensor> unfitted;  ///< those with at least a thousandth of the peak

  std::shared_ptr<const MemoryPlan> in_bf16{};  ///< the plan with bf16 autocast, after rehearse_bf16() was called

  /// Peak of one rank, without prefetched batches.
  int64_t peak_bytes() const { return peak.bytes + communication - saved_by_sharding; }
};

/// Predicts a step's peak memory by running it on synthetic batches of 2 and 3 samples. Sequences longer than 64 and
/// images larger than 64 pixels are replaced by shorter or smaller ones if the model accepts them. The bytes of each
/// tensor become a law of batch and length, and the lifetimes are replayed at the requested size.
///
/// If the model's size is known (BERT, DistilBERT, GPT-2, by name or config.json), the model is never built in full: a
/// skeleton runs the steps (models/model_skeleton.h). For all other models, weights, gradients and optimizer state are
/// allocated, but not the full batch.
/// Params: size – batch: samples per forward pass of all ranks together; length 0: the model's intended size
/// Numerics: within 5 % of the measured peak for batch sizes of at least 4 (tests/plan/plan_test.cpp, bench/plan)
/// Cost:     three or four small steps, and one for each other size of the skeleton
/// Throws:   c10::ValueError like DryRun, or if batch or ranks are below 1, the batch is not divisible by the ranks, a
///           text exceeds the model's positions, or a size is beyond any machine
MemoryPlan plan_memory(const Recipe& recipe, const StepSize& size, int64_t ranks = 1);

/// Also plans an fp32 recipe with bf16 autocast, because no formula predicts which tensors autocast keeps in fp32.
/// Cost: that of plan_memory(); none for other recipes and for repeated calls
void rehearse_bf16(MemoryPlan& plan);

}  // namespace bellows::train
