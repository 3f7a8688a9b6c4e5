#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/plan/step_model.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// The limit of each window of a file with offloaded shards: the default of parallel::ShardOptions.
constexpr int64_t offload_window = 64 << 20;

/// The bytes of activations that a module saves for backward.
struct ModuleBytes {
  std::string module;
  int64_t bytes = 0;
};

/// A tensor whose size cannot be described as a function of batch size and length.
struct UnfittedTensor {
  std::string op, module;
  int64_t bytes = 0;  ///< estimated size
};

/// The predicted memory of a training step. All sizes are bytes of tensors, as inspect/memory.h counts them.
struct MemoryPlan {
  Recipe recipe;
  StepSize size;  ///< input size of one forward pass on one rank
  int64_t ranks = 1;
  int64_t parameters = 0;  ///< number of parameters
  int64_t factored = 0;    ///< number of elements in Adafactor's state, which has a row and a column for each matrix
  StepModel model;         ///< predicts the step for other sizes
  inspect::TensorTimeline step;          ///< the predicted step
  inspect::TensorTimeline::Moment peak;  ///< the peak of `step`
  int64_t communication = 0;             ///< bytes of the buckets that ZeRO-2 and ZeRO-3 exchange, and of file windows
  int64_t saved_by_sharding = 0;         ///< bytes at the peak that only other ranks hold, or that are offloaded
  int64_t waiting = 0;                   ///< bytes of the batches that a loader prefetches
  double step_seconds = 0;               ///< estimated time of forward, backward and update on this machine
  std::vector<StepSize> rehearsed;       ///< the sizes of the dry runs
  /// Size of the model. If it is unknown, all values are 0, and the dry runs used the model itself.
  models::ModelSize model_size;
  models::ModelSize small_model_size;    ///< size of the model skeleton that was used instead
  std::vector<ModuleBytes> activations;  ///< activations by module, in the order of the forward pass
  std::vector<UnfittedTensor> unfitted;  ///< unfitted tensors of at least a thousandth of the peak

  /// The plan with bf16 autocast. Set by rehearse_bf16().
  std::shared_ptr<const MemoryPlan> in_bf16{};

  /// Returns the peak of one rank, without prefetched batches.
  int64_t peak_bytes() const { return peak.bytes + communication - saved_by_sharding; }
};

/// Predicts the peak memory of a step by running the step on synthetic batches of 2 and 3 samples. Sequences of more
/// than 64 tokens and images of more than 64 pixels per side are replaced by smaller inputs if the model accepts them.
/// From these runs, the size of each tensor is derived as a function of batch size and length. The lifetimes of the
/// tensors are then replayed at the requested size.
///
/// If the model's size is known (BERT, DistilBERT, GPT-2, by name or config.json), the model is never created in full
/// size. A model skeleton runs the steps instead (models/model_skeleton.h). For all other models, weights, gradients
/// and optimizer state are allocated, but not the full batch.
/// Params:   size – `batch` is the number of samples per forward pass of all ranks together. A `length` of 0 is the
///                  model's intended size
/// Numerics: within 5 % of the measured peak for batch sizes of at least 4 (tests/plan/plan_test.cpp, bench/plan)
/// Cost:     three or four small steps, and one step for each model in ModelSkeleton::others
/// Throws:   c10::ValueError like DryRun. It is also thrown if the batch or the number of ranks is below 1, or if the
///           batch is not divisible by the number of ranks. The same applies if a text has more tokens than the model
///           has positions, or if a size is too large for any machine
MemoryPlan plan_memory(const Recipe& recipe, const StepSize& size, int64_t ranks = 1);

/// For an fp32 recipe, also makes a plan with bf16 autocast. This plan needs its own dry runs, because no formula
/// predicts which tensors autocast keeps in fp32.
/// Cost: like plan_memory(). For other recipes and repeated calls, there is no cost
void rehearse_bf16(MemoryPlan& plan);

}  // namespace bellows::train
