#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/comm/group.h"
#include "bellows/parallel/context/sequence_layout.h"

namespace bellows::parallel {

/// Queries, keys and values of this rank, with the parts of the complete mask and dropout mask that this rank needs.
struct RingInput {
  at::Tensor query;       ///< [N, H, Q, d]
  at::Tensor key, value;  ///< [N, G, K, d], [N, G, K, e]
  at::Tensor mask;        ///< of all keys, as in AttentionBlock; undefined: none
  at::Tensor kept;        ///< bool [N, H, Q, all keys]: the weights that dropout keeps; undefined: all
};

struct RingOptions {
  comm::Group group;
  SequenceLayout layout;  ///< if `ranks` is 1, nothing is exchanged, regardless of the group's size
  bool causal = false;
  double dropout = 0, scale = 1;
};

/// Attention to the keys of all ranks. Keys and values travel around the ring of ranks, while each rank computes the
/// attention to the keys that it holds. In backward, their gradients travel with them. Collective, in forward and in
/// backward.
/// Numerics: blocks are merged in fp32, or in fp64 for fp64
/// Cost:     for K bytes of keys and values of one rank, forward sends (n - 1) · K bytes, and backward sends the same
///           and (n - 1) · K bytes of gradients, in fp32 or fp64. Transfers overlap with computation
at::Tensor ring_attention(const RingInput& input, const RingOptions& options);

}  // namespace bellows::parallel
