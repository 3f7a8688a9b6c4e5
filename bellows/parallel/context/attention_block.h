#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::parallel {

/// Queries of one rank and keys of one rank. Attention to several blocks of keys is merged with merge().
struct AttentionBlock {
  at::Tensor query;       ///< [N, H, Q, d]
  at::Tensor key, value;  ///< [N, G, K, d], [N, G, K, e]; G divides H
  at::Tensor mask;        ///< added to the scores: [N or 1, H or 1, 1, K], in the dtype of the query; undefined: none
  at::Tensor kept;        ///< bool [N, H, Q, K]: the weights that dropout keeps; undefined: all
  double dropout = 0, scale = 1;
  bool causal = false;  ///< query i attends to the keys 0 … i
};

/// The dtype in which blocks are merged: fp64 for fp64, otherwise fp32.
at::ScalarType merge_dtype(const at::Tensor& x);

/// Returns `x`, or a contiguous copy if elements of its last dim are not adjacent in memory. The flash kernel needs this.
at::Tensor with_dense_rows(const at::Tensor& x);

struct AttentionOutput {
  at::Tensor out;         ///< [N, H, Q, e]
  at::Tensor log_weight;  ///< logarithm of the sum of the exponentials of the scores, [N, H, Q]; -inf: no visible key
};

/// Attention of one block.
/// Cost: on the CPU without dropout, libtorch's flash kernel, whose memory does not grow with Q · K. Otherwise, memory
///       for two or three tensors [N, H, Q, K]
AttentionOutput attend(const AttentionBlock& block);

/// Adds a block to the attention of earlier blocks, in place.
/// Params: all – in the dtype of merge_dtype(); begin – the first query of the block
void merge(AttentionOutput& all, const AttentionOutput& block, int64_t begin);

struct AttentionGradients {
  at::Tensor query, key, value;
};

/// Returns the block's part of the gradients.
/// Params: gradient, out – of the merged output of the block's queries
///         log_weight – of the merged output; 0 for queries without a visible key
AttentionGradients attend_backward(const AttentionBlock& block, const at::Tensor& gradient, const at::Tensor& out,
                                   const at::Tensor& log_weight);

/// Replaces -inf by 0, so that exp(-inf - x) is 0 and not NaN for queries without a visible key.
at::Tensor finite_log_weight(const at::Tensor& log_weight);

}  // namespace bellows::parallel
