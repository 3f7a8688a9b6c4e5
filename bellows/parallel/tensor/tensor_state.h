#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard.h"
#include "bellows/core/model.h"
#include "bellows/parallel/tensor/tensor_plan.h"
#include "bellows/parallel/zero/zero_optimizer.h"

/// The parts of a tensor-parallel model and of its optimizer's state that a rank holds; see TensorParallel.
namespace bellows::parallel {

/// Returns how a parameter is divided, or null if it is complete.
const TensorCut* find_cut(const std::vector<TensorCut>& cuts, const at::Tensor& parameter);

/// Describes tensors that this rank holds as complete ones.
std::vector<comm::Shard> whole_shards(const NamedTensors& tensors);
std::vector<comm::Shard> model_shards(const Model& model, const std::vector<TensorCut>& cuts, const comm::Group& group);
/// Converts parts of this rank's slices, with the names of the model's state, to parts of complete tensors.
std::vector<comm::Shard> complete_shards(const Model& model, const std::vector<comm::Shard>& of_slices,
                                         const std::vector<TensorCut>& cuts, const comm::Group& group);
std::vector<comm::Shard> optimizer_shards(const torch::optim::Optimizer& optimizer, const std::vector<TensorCut>& cuts,
                                          const comm::Group& group);
std::vector<comm::Shard> wanted_optimizer_shards(const torch::optim::Optimizer& optimizer,
                                                 const std::vector<SavedTensor>& saved,
                                                 const std::vector<TensorCut>& cuts, const comm::Group& group);
void load_optimizer_shards(torch::optim::Optimizer& optimizer, const std::vector<comm::Shard>& filled,
                           const std::vector<TensorCut>& cuts, const comm::Group& group);

}  // namespace bellows::parallel
