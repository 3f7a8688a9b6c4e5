#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/parallel/zero/support.h"

namespace bellows::parallel::testing::zero {

inline bool is_gathered(const at::Tensor& parameter) {
  const auto& memory =
      parameter.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return memory.get() != nullptr;
}

/// Blocks of two layers each, of which every other tensor belongs to the root.
struct Blocks final : torch::nn::Module {
  explicit Blocks(int64_t count, int64_t width = 8) {
    first = register_module("first", torch::nn::Linear(width, width));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < count; ++i) {
      blocks->push_back(
          torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::Tanh(), torch::nn::Linear(width, width)));
    }
    last = register_module("last", torch::nn::Linear(width, 3));
    to(at::kDouble);
    const c10::NoGradGuard no_grad;
    double seed = 0;  // ranks share the random generators
    for (const at::Tensor& parameter : parameters()) parameter.copy_(made_up(parameter.sizes(), at::kDouble, ++seed));
  }
  at::Tensor forward(at::Tensor x) {
    x = first(x);
    for (const auto& block : *blocks) {
      x = x + block->as<torch::nn::Sequential>()->forward(x);
      most_gathered = std::max(most_gathered, gathered());
    }
    return last(x);
  }
  int64_t gathered() {
    int64_t count = 0;
    for (const at::Tensor& parameter : parameters()) count += is_gathered(parameter) ? parameter.numel() : 0;
    return count;
  }
  torch::nn::Linear first = nullptr, last = nullptr;
  torch::nn::ModuleList blocks = nullptr;
  int64_t most_gathered = 0;
};

/// The model with ZeRO-3. Each block is a unit, unless the options name others.
struct ShardedBlocks {
  std::shared_ptr<Blocks> net;
  Model model;
  std::shared_ptr<ShardedOptimizer> optimizer;

  explicit ShardedBlocks(const comm::Group& group, ShardOptions options = {}, int64_t count = 6)
      : net(std::make_shared<Blocks>(count)), model(Model::of(net)) {
    options.stage = 3;
    if (options.units.empty()) options.units = {"blocks.*"};
    optimizer = zero_optimizer(sgd()(net->parameters()), model, group, options);
  }
};

inline at::Tensor rows(int64_t step, int64_t rank, int64_t ranks) {
  return made_up({12, 8}, at::kDouble, static_cast<double>(step)).chunk(ranks)[rank];
}

inline at::Tensor loss_of(Blocks& net, int64_t step, const comm::Group& group) {
  return net.forward(rows(step, group.rank(), group.size())).square().mean();
}

inline void train(ShardedBlocks& sharded, int64_t steps, const comm::Group& group) {
  for (int64_t step = 0; step < steps; ++step) {
    sharded.optimizer->zero_grad();
    loss_of(*sharded.net, step, group).backward();
    sharded.optimizer->step();
  }
}

inline std::vector<at::Tensor> values_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

inline std::vector<at::Tensor> blocks_alone(int64_t steps, int64_t count = 6) {
  const auto net = std::make_shared<Blocks>(count);
  const OptimizerPtr optimizer = sgd()(net->parameters());
  for (int64_t step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    net->forward(rows(step, 0, 1)).square().mean().backward();
    optimizer->step();
  }
  return values_of(*net);
}

inline std::vector<comm::Shard> parts_of(const ShardedBlocks& sharded) {
  return sharded.optimizer->shards_of(sharded.optimizer->local_parameters());
}

}  // namespace bellows::parallel::testing::zero
