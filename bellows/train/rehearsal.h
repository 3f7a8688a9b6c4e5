#pragma once

#include <cstdint>
#include <memory>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/models/registry.h"
#include "bellows/train/recipe.h"

namespace bellows::train {

/// How much one step is given.
struct StepSize {
  int64_t batch = 0;   ///< samples of one forward pass
  int64_t length = 0;  ///< tokens, steps of a series, or height and width of pictures; 0: what the model is meant for
  bool operator==(const StepSize&) const = default;
};

/// Takes steps of a recipe's model on made-up samples, in TrainLoop, as a training would: the recipe's precision,
/// optimizer, accumulation, clipping and averages. Data are not read. Models of all kinds of input and output can be
/// rehearsed, not only those that a recipe alone can train.
///
/// The batch is there through forward and backward; a loader that works ahead is not. More than two accumulated batches
/// are as two: the same tensors again.
/// Threads: one owner
class Rehearsal {
 public:
  /// Params: recipe – batch_size, data and what is kept and shown do not matter; the device is the CPU
  /// Throws: c10::ValueError – no such model, a recipe out of range
  explicit Rehearsal(Recipe recipe);
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

  /// What lives in one step. The first call takes a step before, which makes the optimizer's state.
  /// Throws: c10::ValueError – the model does not take such a batch
  inspect::TensorTimeline record(const StepSize& size);
  /// Takes `steps` steps unwatched. Before the first record(), if at all.
  /// Returns: the most bytes of tensors while the last of them ran, above what there was before the model was made
  int64_t measure(const StepSize& size, int64_t steps = 2);

  /// One sample of this length goes through the model, without a graph: no step that is planned is one that cannot be.
  /// Throws: what the model throws
  void try_length(int64_t length);

  /// Of the last step.
  double seconds() const;
  const models::ModelEntry& entry() const;
  /// Shapes of the parameters, tied ones once.
  std::vector<std::vector<int64_t>> parameter_shapes() const;
  /// The length that a size means: its own, the recipe's image_size, or what the model is meant for.
  int64_t length_of(const StepSize& size) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::train
