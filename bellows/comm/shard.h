#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard_spec.h"
#include "bellows/core/model.h"

namespace bellows::comm {

/// A part of a named tensor on one rank. A rank may hold several parts of the same tensor.
struct Shard {
  std::string name;
  /// The elements of the part. For a box, they have the shape of the box; for a run, the shape is [count] (see
  /// ShardSpec).
  at::Tensor local;
  ShardSpec spec;
};

/// Returns the part of a tensor that `spec` describes, in the shape of Shard::local. The result is a view, except if
/// `spec` is a run of elements and the tensor is not row-major.
/// Throws: c10::ValueError if the sizes in `spec` are not those of the tensor, or if the box is not inside the tensor
at::Tensor part_of(const at::Tensor& whole, const ShardSpec& spec);

/// Assembles complete tensors from the parts of all ranks. The tensors are row-major and on the CPU. Their order is
/// that of the names on rank 0, then on rank 1, and so on. All ranks get the same result. If several ranks hold the
/// same part, their values are assumed to be equal. Collective.
/// Numerics: exact
/// Cost:     the parts of each rank are sent to all other ranks. Needs memory for all complete tensors and for the
///           parts of one rank
/// Throws:   c10::ValueError if parts of the same name differ in sizes or dtype, if no rank holds some of the elements,
///           or if different parts overlap
NamedTensors gather(const std::vector<Shard>& shards, const Group& group);

}  // namespace bellows::comm
