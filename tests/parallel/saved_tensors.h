#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <string_view>
#include <vector>

#include "bellows/checkpoint/sharded.h"
#include "bellows/comm/group.h"
#include "bellows/parallel/zero/zero_optimizer.h"

namespace bellows::parallel::testing {

/// What a folder has of an optimizer.
inline std::vector<SavedTensor> optimizer_tensors(const checkpoint::ShardedIndex& saved) {
  constexpr std::string_view section = "optimizer/";
  std::vector<SavedTensor> result;
  result.reserve(saved.tensors.size());
  for (const checkpoint::SavedTensor& tensor : saved.tensors) {
    if (tensor.name.starts_with(section))
      result.push_back({tensor.name.substr(section.size()), tensor.scalar_type(), tensor.sizes, tensor.strides});
  }
  return result;
}

/// Loads a folder into a divided model and its optimizer.
/// Params: divided – a TensorParallel or a Pipeline
template <class Divided>
void load_divided(const std::string& path, const Divided& divided, torch::optim::Optimizer& optimizer,
                  const comm::Group& group) {
  checkpoint::ShardedState state{.model = divided.shards()};
  checkpoint::load_sharded(path, state, group, [&](const checkpoint::ShardedIndex& saved, auto& wanted) {
    wanted.optimizer = divided.wanted_shards(optimizer, optimizer_tensors(saved));
  });
  divided.load_shards(optimizer, state.optimizer);
}

}  // namespace bellows::parallel::testing
