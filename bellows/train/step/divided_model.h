#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "bellows/checkpoint/sharded.h"
#include "bellows/core/model.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "bellows/train/job.h"

namespace bellows::train {

/// A model of which this rank holds only a part, because ranks divide its layers (TensorRanks) or divide it into stages
/// (PipelineRanks).
/// Threads: not thread-safe; functions for optimizers, evaluated models and complete parameters are collective
class DividedModel {
 public:
  DividedModel() = default;
  virtual ~DividedModel() = default;
  DividedModel(const DividedModel&) = delete;
  DividedModel& operator=(const DividedModel&) = delete;

  // See the functions of Ranks with these names.
  virtual Model local_model() const = 0;
  virtual Model evaluated_model() const = 0;
  virtual checkpoint::Parts parts_of(const torch::optim::Optimizer& optimizer) const = 0;
  virtual NamedTensors local_parts(const NamedTensors& complete) const = 0;
  /// Converts parts of the tensors of local_model(), such as shards of ZeRO-3, to parts of complete tensors. The results
  /// are views of the given tensors.
  virtual checkpoint::Parts complete_shards(checkpoint::Parts of_local) const = 0;
  virtual void complete_parameters() = 0;
  virtual std::string describe() const = 0;
  void load_complete_state(torch::optim::Optimizer& optimizer, const NamedTensors& complete) const;

 protected:
  // See the functions of parallel::TensorParallel with these names.
  virtual checkpoint::Parts wanted_shards(const torch::optim::Optimizer& optimizer,
                                          const std::vector<parallel::SavedTensor>& saved) const = 0;
  virtual void load_shards(torch::optim::Optimizer& optimizer, const checkpoint::Parts& filled) const = 0;
};

/// Call this function before a model is divided.
/// Throws: c10::ValueError if an optimizer of the job already has state
void check_new_optimizers(const Job& job);

}  // namespace bellows::train
