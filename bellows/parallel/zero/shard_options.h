#pragma once

#include <torch/optim/optimizer.h>

#include "bellows/comm/group.h"
#include "bellows/parallel/zero/zero_optimizer.h"

namespace bellows::parallel {

/// Checks that the ranks of all replicas have the same options and versions. Collective.
/// Throws: c10::ValueError on every rank if they differ. The message names the rank and the option. If a rank has no
///         `replicas`, but other ranks of its group do, the ranks that hold the same shards wait until it exits
void check_same_shard_options(const ShardOptions& options, const comm::Group& group);

/// Throws: c10::ValueError if an option is out of range or needs another one, or if the optimizer is null, already
///         sharded or not supported
void check_shardable(const torch::optim::Optimizer* optimizer, const ShardOptions& options);

}  // namespace bellows::parallel
