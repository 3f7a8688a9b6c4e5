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

/// How much one step is given.
struct StepSize {
  int64_t batch = 0;   ///< samples of one forward pass
  int64_t length = 0;  ///< tokens, steps of a series, or height and width of pictures; 0: what the model is meant for
  bool operator==(const StepSize&) const = default;
};

using NamedShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

/// The recipe's model, reading what the recipe's data would have it read.
/// Throws: c10::ValueError – no such model; a text model without a number of words
models::ModelEntry dry_run_entry(const Recipe& recipe);

/// The length that a size means: its own, the recipe's image_size, or what the model is meant for.
int64_t dry_run_length(const Recipe& recipe, const models::ModelEntry& entry, const StepSize& size);

/// Takes steps of a recipe's model on made-up samples, in TrainLoop, as a training would: the recipe's precision,
/// optimizer, accumulation, clipping and averages. Data are not read. Models of all kinds of input and output can be
/// run so, not only those that a recipe alone can train.
///
/// The batch is there through forward and backward; a loader that works ahead is not. More than two accumulated batches
/// are as two: the same tensors again.
/// Threads: one owner
class DryRun {
 public:
  /// Params: recipe – batch_size, data and what is kept and shown do not matter; the device is the CPU
  ///         extent – of a model of the same make, where dry_run_entry() knows how to make one; none: the recipe's own
  /// Throws: c10::ValueError – no such model, a recipe out of range
  explicit DryRun(Recipe recipe, const std::optional<models::Extent>& extent = {});
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  /// What lives in one step. The first call takes a step before, which makes the optimizer's state.
  /// Throws: c10::ValueError – the model does not take such a batch
  inspect::TensorTimeline record(const StepSize& size);
  /// Takes `steps` steps unwatched. Before the first record(), if at all.
  /// Returns: the most bytes of tensors while the last of them ran, above what there was before the model was made
  int64_t measure(const StepSize& size, int64_t steps = 2);

  /// One sample of this length goes through the model, without a graph: no step that is planned is one that cannot be.
  /// Throws: what the model throws
  void try_length(int64_t length);

  /// The loss has the scores of tokens a chunk at a time (nn::linear_cross_entropy): more rows than that hold no more.
  bool holds_few_scores() const;

  /// Of the last step.
  double seconds() const;
  const models::ModelEntry& entry() const;
  /// Tied ones once.
  NamedShapes parameter_shapes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::train
