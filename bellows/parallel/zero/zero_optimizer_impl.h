#pragma once

#include <memory>
#include <vector>

#include "bellows/parallel/zero/gradient_buckets.h"
#include "bellows/parallel/zero/shard_layout.h"
#include "bellows/parallel/zero/zero_optimizer.h"

namespace bellows::parallel {

struct ShardedOptimizer::Impl {
  std::shared_ptr<torch::optim::Optimizer> local;  ///< its groups hold pieces where the caller's held parameters
  comm::Group group;
  ShardOptions options;
  std::vector<at::Tensor> parameters;  ///< of all groups, as the caller's optimizer held them
  Layout layout;
  std::vector<Place*> places;                 ///< of each of them; null: it stays whole
  std::unique_ptr<GradientShards> gradients;  ///< stage 2
  bool unfinished = false;                    ///< a step() threw while weights were updated
  at::Tensor grad_scale, found_inf;           ///< for the next step
};

}  // namespace bellows::parallel
