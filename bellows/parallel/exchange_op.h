#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/comm/collectives.h"
#include "bellows/comm/group.h"

/// Collectives that compiled functions record as operators. Other collectives first run all pending operators. Outside
/// of compiled functions, both are the same.
///
/// A program keeps the order of these operators and of writes to tensors that outlive it. The ranks of a group must call
/// the same exchanges in the same order, and may call different operators between them. The groups must exist until the
/// pending operators have run.
/// Threads: like comm::all_reduce()
/// Throws:  like the functions of comm. In a compiled function, when the operator runs
namespace bellows::parallel {

/// Returns the reduced tensor. The result is contiguous, and `x` does not change.
at::Tensor all_reduce_op(const at::Tensor& x, const comm::Group& group, comm::Reduce op = comm::Reduce::sum);
/// Gathers the tensors of all ranks: [D0, …] → [size, D0, …].
at::Tensor all_gather_op(const at::Tensor& x, const comm::Group& group);
/// Sends part r of each rank's tensor to rank r: [size, …] → [size, …].
at::Tensor all_to_all_op(const at::Tensor& x, const comm::Group& group);

}  // namespace bellows::parallel
