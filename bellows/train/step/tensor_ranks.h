#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/parallel/tensor/tensor_parallel.h"
#include "bellows/train/job.h"

namespace bellows::train {

/// Divides the layers of a job's model among the ranks of the mesh axis `tensor`, as the recipe's `tensor_plan` and
/// `sequence_parallel` describe it. These ranks read the same samples.
/// Threads: not thread-safe; all calls except layers() and scope() are collective for the ranks of the axis
class TensorRanks {
 public:
  /// Replaces the data of the job's parameters by slices, and its loss by a function that computes divided layers.
  /// Throws: RecipeError if `tensor_plan: auto` has no plan for the model. c10::ValueError if the plan does not fit, if
  ///         an optimizer already has state, or if `sequence_parallel` is set but the model does not define blocks
  TensorRanks(Job& job, const comm::Group& axis);
  ~TensorRanks();
  TensorRanks(const TensorRanks&) = delete;
  TensorRanks& operator=(const TensorRanks&) = delete;

  const parallel::TensorParallel& layers() const { return layers_; }
  /// Returns a guard that must exist in backward; see TensorParallel::scope().
  std::shared_ptr<void> scope() const;
  /// Returns the model with complete outputs, for evaluation.
  Model with_complete_logits() const;

  /// Returns this rank's slices of complete tensors with the names of the model's state_dict(). Other tensors do not
  /// change. This function is not collective.
  NamedTensors slices_of(const NamedTensors& complete) const;
  /// Loads this rank's slices of the complete state of an optimizer. This function is not collective.
  void load_complete_state(torch::optim::Optimizer& optimizer, const NamedTensors& complete) const;

 private:
  Model model_;
  bool runs_blocks_ = false;
  parallel::TensorParallel layers_;
};

}  // namespace bellows::train
