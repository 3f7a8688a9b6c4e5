#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace bellows::parallel {

/// The division of a sequence among the ranks of a context axis. The sequence is cut into chunks of equal length. In
/// zig-zag order, rank r of n has the chunks r and 2n - 1 - r of 2n, so that causal attention is the same amount of
/// work on each rank. Otherwise, rank r has chunk r of n.
struct SequenceLayout {
  int ranks = 1;
  bool zigzag = true;

  int64_t chunks() const { return zigzag && ranks > 1 ? 2 * ranks : ranks; }
  /// The chunks of a rank, in ascending order.
  std::vector<int64_t> chunks_of(int rank) const;
};

/// Returns a rank's part of a complete sequence. It is differentiable.
/// Throws: c10::ValueError if the length of `dim` is not a multiple of the number of chunks, or is 0
at::Tensor part_of_rank(const at::Tensor& x, int64_t dim, int rank, const SequenceLayout& layout);

/// Reorders a sequence. Before, `dim` contains the parts of all ranks one after another. After, its tokens are in the
/// order of the complete sequence. It is differentiable.
at::Tensor in_token_order(const at::Tensor& x, int64_t dim, const SequenceLayout& layout);

/// Returns the positions of a rank's tokens in a sequence of `tokens` tokens: int64 [tokens / ranks].
at::Tensor token_positions(int64_t tokens, int rank, const SequenceLayout& layout);

/// The queries of one rank that attend to keys of another rank: a range of the first rank's part. The keys are the first
/// `keys` keys of the other rank.
struct VisibleBlock {
  int64_t query_begin = 0, queries = 0, keys = 0;
  bool causal = false;  ///< within the block, query i attends to the keys 0 … i
};

/// Returns the block that one rank computes with the keys of another rank, or nothing if a causal mask hides all keys.
/// Params: queries, keys – number of tokens of one rank. If `causal` is set, they are equal
std::optional<VisibleBlock> visible_block(const SequenceLayout& layout, int query_rank, int key_rank, bool causal,
                                          int64_t queries, int64_t keys);

}  // namespace bellows::parallel
