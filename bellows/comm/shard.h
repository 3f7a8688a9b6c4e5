#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard_spec.h"
#include "bellows/core/model.h"

namespace bellows::comm {

/// A part of a named tensor on one rank. A rank may hold several parts of a tensor.
struct Shard {
  std::string name;
  at::Tensor local;  ///< in the shape of the box; [count] if the box is a run of elements
  ShardSpec spec;
};

/// Returns the part of a tensor in the shape of Shard::local. The result is a view, except for runs of elements of a
/// tensor that is not row-major.
/// Throws: c10::ValueError if the sizes of the tensor and of the spec differ, or if the box is not inside the tensor
at::Tensor part_of(const at::Tensor& whole, const ShardSpec& spec);

/// Assembles complete tensors from the parts of all ranks: row-major, on the CPU, in the order in which the names occur
/// on rank 0, 1, …. All ranks get the same result. If several ranks hold the same part, the parts are assumed to be
/// equal. Collective.
/// Numerics: exact
/// Cost:     each rank's parts are sent to all others; memory for all complete tensors and for the parts of one rank
/// Throws:   c10::ValueError if parts of one name differ in sizes or dtype, or if no rank holds some of the elements
NamedTensors gather(const std::vector<Shard>& shards, const Group& group);

}  // namespace bellows::comm
