#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace bellows::comm {

/// Combines neighboring parts, then neighboring results, and so on. The order is the same as if one process had combined
/// the parts of some neighboring ranks before.
/// Params: parts – of the ranks, at least two, with the sizes and dtype of `out`; the function overwrites them
void reduce_in_pairs(at::Tensor out, std::vector<at::Tensor> parts, c10d::ReduceOp::RedOpType op);

}  // namespace bellows::comm
