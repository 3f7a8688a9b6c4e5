#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard.h"
#include "bellows/core/model_parts.h"
#include "bellows/parallel/tensor/tensor_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"

namespace bellows::parallel {

/// The parameters and buffers of a divided model, and the ranks that hold them.
class HeldTensors {
 public:
  struct Parameter {
    at::Tensor tensor;
    std::vector<int> ranks;  ///< ranks whose stages use it, in ascending order
  };

  /// Params: stage_ranks – rank of each stage; first_parts – first part of each stage; rank – this rank
  ///         divided – has divided the layers
  HeldTensors(const ModelParts& parts, const std::vector<int>& stage_ranks, const std::vector<int>& first_parts,
              int rank, std::optional<TensorParallel> divided);

  bool holds(const at::Tensor& tensor) const { return ranks_.at(tensor.unsafeGetTensorImpl()).count(rank_) != 0; }
  /// Frees the data of tensors that this rank does not hold.
  void free_others() const;

  /// All parameters of the model, each once, in the order of the model.
  const std::vector<Parameter>& all() const { return all_; }
  /// Those of this rank.
  const std::vector<at::Tensor>& own() const { return own_; }
  NamedTensors named() const;  ///< parameters and buffers of this rank
  /// Parameters of this rank that ranks before it hold, too: tied weights, and complete parameters of divided layers.
  /// Call it before the gradients are registered.
  std::vector<at::Tensor> copies() const;

  // See Pipeline::shards() and the functions that follow it.
  std::vector<comm::Shard> shards() const;
  std::vector<comm::Shard> state_shards(const torch::optim::Optimizer& optimizer, const comm::Group& group) const;
  std::vector<comm::Shard> wanted_shards(const torch::optim::Optimizer& optimizer,
                                         const std::vector<SavedTensor>& saved, const comm::Group& group) const;
  void load_shards(torch::optim::Optimizer& optimizer, const std::vector<comm::Shard>& filled,
                   const comm::Group& group) const;

 private:
  std::vector<size_t> global_indexes(const torch::optim::Optimizer& optimizer, const comm::Group& group) const;

  Model model_;
  int rank_;
  std::optional<TensorParallel> tensor_;
  std::map<const at::TensorImpl*, std::set<int>> ranks_;  ///< ranks that hold a tensor
  std::vector<Parameter> all_;
  std::vector<at::Tensor> own_;
};

}  // namespace bellows::parallel
