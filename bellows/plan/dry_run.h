#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/inspect/op_counter.h"
#include "bellows/inspect/tensor_timeline.h"
#include "bellows/models/registry.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// The input size of a step.
struct StepSize {
  int64_t batch = 0;  ///< number of samples per forward pass
  /// Number of tokens, steps of a series, or height and width of images. 0: the model's intended size.
  int64_t length = 0;
  bool operator==(const StepSize&) const = default;
};

using NamedShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

/// Returns the entry of the recipe's model, with the input shapes of the recipe's data.
/// Throws: c10::ValueError if the model does not exist, or if a text model has no vocabulary size
models::ModelEntry dry_run_entry(const Recipe& recipe);

/// Returns the length that is used: `size.length` if it is set, otherwise the recipe's image_size or the model's
/// intended size.
int64_t dry_run_length(const Recipe& recipe, const models::ModelEntry& entry, const StepSize& size);

/// Runs training steps of a recipe's model (with TrainLoop) on synthetic samples. The steps use the recipe's precision,
/// optimizer, gradient accumulation, gradient clipping and averaged weights. No data are read. Models of all input and
/// output kinds are supported, even models that cannot be trained with a recipe alone.
///
/// The batch exists during forward and backward. No batches are prefetched. If the recipe has more than two gradient
/// accumulation steps, only two are run, because further steps would use the same tensors.
/// Threads: not thread-safe
class DryRun {
 public:
  /// Params: recipe – the recipe to run. Its batch_size, data and output settings are ignored, and the device is the
  ///                  CPU
  ///         model_size – a different size of the model, if the entry from dry_run_entry() defines a model size. If it
  ///                      is not set, the model has the recipe's size
  /// Throws: c10::ValueError if the model does not exist, or if a value of the recipe is out of range
  explicit DryRun(const Recipe& recipe, const std::optional<models::ModelSize>& model_size = {});
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  /// Records the tensors of one step. Before the first recording, one unrecorded step runs and creates the optimizer
  /// state.
  /// Throws: c10::ValueError if the model does not accept such a batch
  inspect::TensorTimeline record(const StepSize& size);
  /// Runs `steps` steps without recording. Call it only before the first record().
  /// Returns: the peak of tensor bytes during the last step, without the tensors that existed before the model was
  ///          created
  int64_t measure(const StepSize& size, int64_t steps = 2);

  /// Counts the operators of one step. Call it only before the first record().
  /// Throws: c10::ValueError if the model does not accept such a batch
  inspect::OpReport count(const StepSize& size);

  /// Runs one sample of this length through the model without an autograd graph, to check whether the model accepts it.
  /// Throws: exceptions from the model
  void try_length(int64_t length);

  /// Returns whether the loss computes the logits in chunks (nn::linear_cross_entropy), which limits their memory.
  bool holds_few_scores() const;

  /// Returns the duration of the last step.
  double seconds() const;
  const models::ModelEntry& entry() const;
  /// Returns the parameter shapes. Tied parameters occur once.
  NamedShapes parameter_shapes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::train
