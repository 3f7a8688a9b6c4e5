#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/models/blocks.h"
#include "bellows/parallel/tensor/tensor_parallel.h"
#include "bellows/train/job.h"
#include "bellows/train/step/divided_model.h"

namespace bellows::train {

/// Divides the layers of a job's model among the ranks of the mesh axis `tensor`, as the recipe's `tensor_plan` and
/// `sequence_parallel` describe it. These ranks read the same samples.
/// Threads: not thread-safe; all calls except layers() and scope() are collective for the ranks of the axis
class TensorRanks final : public DividedModel {
 public:
  /// Replaces the data of the job's parameters by slices, and its loss by a function that computes divided layers.
  /// Throws: RecipeError if `tensor_plan: auto` has no plan for the model. c10::ValueError if the plan does not fit, if
  ///         an optimizer already has state, or if `sequence_parallel` is set but the model does not define blocks
  TensorRanks(Job& job, const comm::Group& axis);
  ~TensorRanks() override;

  const parallel::TensorParallel& layers() const { return layers_; }
  /// Returns the function with which blocks divide sequences among the ranks of the axis; null without
  /// `sequence_parallel`. The constructor sets it, except if a mesh axis `context` divides the sequences, too.
  models::RunBlock sequence_blocks() const;
  /// Returns a guard that must exist in backward; see TensorParallel::scope().
  std::shared_ptr<void> scope() const;
  /// Call this function after a forward pass.
  /// Throws: c10::ValueError if the output layer is divided, but the loss does not support it
  void check_output(const Task& task) const;

  Model local_model() const override { return model_; }
  Model evaluated_model() const override;
  checkpoint::Parts parts_of(const torch::optim::Optimizer& optimizer) const override {
    return layers_.state_shards(optimizer);
  }
  /// This function is not collective.
  NamedTensors local_parts(const NamedTensors& complete) const override;
  checkpoint::Parts complete_shards(checkpoint::Parts of_local) const override {
    return layers_.complete_shards(of_local);
  }
  void complete_parameters() override { layers_.restore_model(); }
  std::string describe() const override { return "tensor parallelism: " + layers_.describe(); }

 protected:
  checkpoint::Parts wanted_shards(const torch::optim::Optimizer& optimizer,
                                  const std::vector<parallel::SavedTensor>& saved) const override {
    return layers_.wanted_shards(optimizer, saved);
  }
  void load_shards(torch::optim::Optimizer& optimizer, const checkpoint::Parts& filled) const override {
    layers_.load_shards(optimizer, filled);
  }

 private:
  Model model_;
  bool divides_sequences_;
  bool runs_blocks_ = false;
  parallel::TensorParallel layers_;
};

}  // namespace bellows::train
