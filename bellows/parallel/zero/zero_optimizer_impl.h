#pragma once

#include <memory>
#include <vector>

#include "bellows/parallel/zero/gradient_buckets.h"
#include "bellows/parallel/zero/parameter_shards.h"
#include "bellows/parallel/zero/shard_layout.h"
#include "bellows/parallel/zero/shard_offload.h"
#include "bellows/parallel/zero/zero_optimizer.h"

namespace bellows::parallel {

/// The parts of a sharded optimizer.
struct ShardedOptimizer::Impl {
  std::shared_ptr<torch::optim::Optimizer> local;  ///< its groups have shards in place of the caller's parameters
  ShardGroups groups;
  comm::Group all;  ///< the ranks of all replicas
  ShardOptions options;
  Model model;
  std::vector<at::Tensor> parameters;  ///< of all groups of the caller's optimizer
  Layout layout;
  std::vector<Place*> places;                             ///< of each parameter; null: not sharded
  std::unique_ptr<ParameterShards> sharded_parameters;    ///< stage 3 on several ranks
  std::unique_ptr<GradientShards> gradients;              ///< stages 2 and 3
  ShardMemory memory = {};                                ///< of the shards in stage 3
  std::shared_ptr<BucketFile> gradient_file = {};         ///< null: gradients are in memory
  std::unique_ptr<BucketSteps> bucket_steps = {};         ///< null: all parameters step together
  bool unfinished = false;                                ///< an error occurred while weights were updated
  std::unique_ptr<GradientShards::Updates> updates = {};  ///< null: step() updates the parameters
  at::Tensor grad_scale, found_inf;                       ///< for the next step
};

}  // namespace bellows::parallel
