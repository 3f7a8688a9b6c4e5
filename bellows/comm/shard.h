#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard_spec.h"
#include "bellows/core/model.h"

namespace bellows::comm {

/// One rank's part of a named tensor. A rank may hold several parts of one.
struct Shard {
  std::string name;
  at::Tensor local;  ///< in the box's shape; [count] where the box is a run of elements
  ShardSpec spec;
};

/// The part of a tensor, in the shape of Shard::local. A view, unless it is a run of elements of a tensor that is not
/// row-major.
/// Throws: c10::ValueError – the tensor has other sizes than the spec, the box is not inside
at::Tensor part_of(const at::Tensor& whole, const ShardSpec& spec);

/// Puts the ranks' parts together: whole tensors, row-major, on the CPU, in the order in which their names come, rank after
/// rank. The same on every rank. Parts that several ranks hold alike are taken to be equal. Collective.
/// Numerics: exact
/// Cost:     each rank's parts are sent to all others; memory of all whole tensors and of one rank's parts
/// Throws:   c10::ValueError – parts of one name that disagree about its sizes or dtype; elements that no rank holds
NamedTensors gather(const std::vector<Shard>& shards, const Group& group);

}  // namespace bellows::comm
