#include "bellows/parallel/context/sequence_layout.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

namespace bellows::parallel {

std::vector<int64_t> SequenceLayout::chunks_of(int rank) const {
  if (chunks() == ranks) return {rank};
  return {rank, chunks() - 1 - rank};
}

at::Tensor part_of_rank(const at::Tensor& x, int64_t dim, int rank, const SequenceLayout& layout) {
  if (layout.ranks == 1) return x;
  const int64_t count = layout.chunks(), tokens = x.size(dim);
  TORCH_CHECK_VALUE(tokens > 0 && tokens % count == 0, "context parallelism: dim ", dim, " of a tensor with sizes [",
                    c10::Join(", ", x.sizes()), "] has ", tokens, " tokens, but ", layout.ranks, " ranks",
                    layout.zigzag ? " in zig-zag order" : "", " need a multiple of ", count, ". Pad the batch.");
  const int64_t length = tokens / count;
  std::vector<at::Tensor> parts;
  for (const int64_t chunk : layout.chunks_of(rank)) parts.push_back(x.narrow(dim, chunk * length, length));
  return parts.size() == 1 ? parts[0].contiguous() : at::cat(parts, dim);
}

at::Tensor in_token_order(const at::Tensor& x, int64_t dim, const SequenceLayout& layout) {
  if (layout.chunks() == layout.ranks) return x;
  const int64_t length = x.size(dim) / layout.chunks();
  std::vector<at::Tensor> ordered(static_cast<size_t>(layout.chunks()));
  int64_t begin = 0;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    for (const int64_t chunk : layout.chunks_of(rank)) {
      ordered[static_cast<size_t>(chunk)] = x.narrow(dim, begin, length);
      begin += length;
    }
  }
  return at::cat(ordered, dim);
}

at::Tensor token_positions(int64_t tokens, int rank, const SequenceLayout& layout) {
  return part_of_rank(at::arange(tokens, at::kLong), 0, rank, layout);
}

std::optional<VisibleBlock> visible_block(const SequenceLayout& layout, int query_rank, int key_rank, bool causal,
                                          int64_t queries, int64_t keys) {
  if (!causal) return VisibleBlock{.queries = queries, .keys = keys};
  if (query_rank == key_rank) return VisibleBlock{.queries = queries, .keys = keys, .causal = true};
  const bool earlier = key_rank < query_rank;
  if (!layout.zigzag) return earlier ? std::optional(VisibleBlock{.queries = queries, .keys = keys}) : std::nullopt;
  // Chunk r is before and chunk 2n - 1 - r is after all chunks of the ranks r + 1 … n - 1.
  if (earlier) return VisibleBlock{.queries = queries, .keys = keys / 2};
  return VisibleBlock{.query_begin = queries / 2, .queries = queries - queries / 2, .keys = keys};
}

}  // namespace bellows::parallel
