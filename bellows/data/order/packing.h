#pragma once

#include "bellows/data/source.h"

#include <string>
#include <vector>

namespace bellows::data {

/// A stretch of one document.
struct Piece {
  int64_t document = 0;  ///< position in the source
  int64_t begin = 0, length = 0;
};

/// Which pieces of documents share a row.
struct Packing {
  std::vector<Piece> pieces;        ///< row after row
  std::vector<int64_t> row_starts;  ///< in pieces, of each row, and the end
  int64_t row_length = 0;

  int64_t rows() const { return static_cast<int64_t>(row_starts.size()) - 1; }
  /// The share of all places that stays empty.
  double padding_share() const;
};

struct PackingOptions {
  int64_t row_length = 1024;  ///< tokens
  int64_t window = 4096;      ///< documents that are packed at a time, next to each other in the source or as shuffled
  bool shuffle = true;        ///< which documents meet in a row is drawn from `seed`; otherwise the source's neighbours
  uint64_t seed = 0;
};

/// Puts documents into rows of fixed length, first-fit decreasing within each window: longest first, each into the
/// first row that has room. A document that is longer than a row is cut into full rows and a rest. Each token is in
/// exactly one row; empty documents are in none.
/// Params: lengths – tokens of each document
/// Cost:   24 bytes a piece; O(log window) a document
/// Throws: c10::ValueError – an option below 1, a negative length
Packing pack_rows(const std::vector<int64_t>& lengths, const PackingOptions& options);

/// A source whose samples are rows of packed documents: int64 arrays "tokens", "segment_ids" (1, 2, … for the pieces
/// in it, 0 where it is empty) and "position_ids" (from 0 in each piece), each [row_length].
///
/// Attention must stay inside the segments: attention_mask or cumulative_lengths say how, next_tokens gives the targets
/// of language modelling. Rows are shuffled by any order.
/// Params: field – of `source`: an integer array [tokens], or a file, of which each byte is a token
/// Throws: c10::ValueError – packing of another source, or pieces that do not fit into its rows; read() – a document without the field, of another type, or
///         that is shorter than when it was packed
SourcePtr packed(SourcePtr source, std::string field, Packing packing);

/// Which tokens may see which: those of their own segment, with `causal` only those up to themselves. For
/// at::scaled_dot_product_attention.
/// Shapes: segment_ids [N, T] → bool [N, 1, T, T]
at::Tensor attention_mask(const at::Tensor& segment_ids, bool causal = true);

/// Which places of padded rows hold what is theirs: for at::scaled_dot_product_attention as mask[:, None, None, :].
/// Params: lengths – of Dataset::pad
/// Shapes: lengths [N] → bool [N, length], on its device
at::Tensor padding_mask(const at::Tensor& lengths, int64_t length);

/// Where each segment begins in the rows laid end to end, and the end: what attention over sequences of varying length
/// takes (cu_seqlens). Empty places are segments of their own.
/// Shapes: segment_ids [N, T] → int32 [segments + 1], on its device
at::Tensor cumulative_lengths(const at::Tensor& segment_ids);

/// The token that follows each one in its segment; `ignore` at a segment's end and in empty places.
/// Shapes: tokens, segment_ids [N, T] → [N, T]
at::Tensor next_tokens(const at::Tensor& tokens, const at::Tensor& segment_ids, int64_t ignore = -100);

}  // namespace bellows::data
