#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/comm/group.h"
#include "bellows/parallel/context/sequence_layout.h"

/// Exchanges of a divided sequence, with their gradients. The gradients are those of the sum of the ranks' losses. They
/// are collective, in forward and in backward. Second derivatives are not supported.
namespace bellows::parallel {

/// Gathers the ranks' parts of a sequence along `dim`, in the order of the tokens. Backward adds the gradients of all
/// ranks, and returns this rank's part of the sum.
/// Cost: each of n ranks sends n - 1 times the bytes of its part, and in backward (n - 1) / n of the complete gradient
at::Tensor gather_tokens(const at::Tensor& x, int64_t dim, const SequenceLayout& layout, const comm::Group& group);

/// Sends part r to rank r: [size, …] → [size, …]. Backward sends the gradients back.
at::Tensor exchange_parts(const at::Tensor& parts, const comm::Group& group);

}  // namespace bellows::parallel
