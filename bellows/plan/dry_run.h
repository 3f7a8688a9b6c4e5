#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/models/registry.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// The input size of a step.
struct StepSize {
  int64_t batch = 0;  ///< samples per forward pass
  /// Tokens, steps of a series, or height and width of images; 0: the model's intended size.
  int64_t length = 0;
  bool operator==(const StepSize&) const = default;
};

using NamedShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

/// The recipe's model, with the input shapes of the recipe's data.
/// Throws: c10::ValueError if the model does not exist, or a text model has no vocabulary size
models::ModelEntry dry_run_entry(const Recipe& recipe);

/// The effective length: the size's own, the recipe's image_size, or the model's intended size.
int64_t dry_run_length(const Recipe& recipe, const models::ModelEntry& entry, const StepSize& size);

/// Runs steps of a recipe's model on synthetic samples in TrainLoop, with the recipe's precision, optimizer,
/// accumulation, clipping and averages. It does not read data. Models of all input and output kinds are supported, even
/// those that a recipe alone cannot train.
///
/// The batch exists during forward and backward; batches that a loader prefetches do not. More than two accumulation
/// steps are run as two, because further ones use the same tensors.
/// Threads: not thread-safe
class DryRun {
 public:
  /// Params: recipe – batch_size, data and output settings are ignored; the device is the CPU
  ///         model_size – another size of the model, if dry_run_entry() supports it; none: the recipe's own
  /// Throws: c10::ValueError if the model does not exist or the recipe is out of range
  explicit DryRun(const Recipe& recipe, const std::optional<models::ModelSize>& model_size = {});
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  /// Records the tensors of one step. The first call runs another step before, which creates the optimizer state.
  /// Throws: c10::ValueError if the model does not accept such a batch
  inspect::TensorTimeline record(const StepSize& size);
  /// Runs `steps` steps without recording. Call it only before the first record().
  /// Returns: the peak of tensor bytes during the last step, above those that existed before the model was created
  int64_t measure(const StepSize& size, int64_t steps = 2);

  /// Runs one sample of this length through the model without a graph, to check that the model accepts it.
  /// Throws: exceptions of the model
  void try_length(int64_t length);

  /// Whether the loss computes logits in chunks (nn::linear_cross_entropy), so that their memory is limited.
  bool holds_few_scores() const;

  /// Duration of the last step.
  double seconds() const;
  const models::ModelEntry& entry() const;
  /// Parameter shapes; tied parameters occur once.
  NamedShapes parameter_shapes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::train
