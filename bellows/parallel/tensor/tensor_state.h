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

std::vector<comm::Shard> model_shards(const Model& model, const std::vector<TensorCut>& cuts, const comm::Group& group);
/// The same for tensors with the names and the local sizes of the model's state.
std::vector<comm::Shard> shards_like(const Model& model, const NamedTensors& local, const std::vector<TensorCut>& cuts,
                                     const comm::Group& group);
std::vector<comm::Shard> optimizer_shards(const torch::optim::Optimizer& optimizer, const std::vector<TensorCut>& cuts,
                                          const comm::Group& group);
std::vector<comm::Shard> wanted_optimizer_shards(const torch::optim::Optimizer& optimizer,
                                                 const std::vector<SavedTensor>& saved,
                                                 const std::vector<TensorCut>& cuts, const comm::Group& group);
void load_optimizer_shards(torch::optim::Optimizer& optimizer, const std::vector<comm::Shard>& filled,
                           const std::vector<TensorCut>& cuts, const comm::Group& group);

}  // namespace bellows::parallel
