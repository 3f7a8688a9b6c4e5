#pragma once

#include "bellows/data/source.h"

#include <string>
#include <vector>

namespace bellows::data {

/// A part of one document.
struct Piece {
  int64_t document = 0;  ///< position in the source
  int64_t begin = 0, length = 0;
};

/// The assignment of pieces of documents to rows.
struct Packing {
  std::vector<Piece> pieces;        ///< row by row
  std::vector<int64_t> row_starts;  ///< index of each row's first piece, and the number of pieces at the end
  int64_t row_length = 0;

  int64_t rows() const { return static_cast<int64_t>(row_starts.size()) - 1; }
  /// The share of empty positions.
  double padding_share() const;
};

struct PackingOptions {
  int64_t row_length = 1024;  ///< tokens
  int64_t window = 4096;      ///< documents that are packed at a time, adjacent in the source or after shuffling
  bool shuffle = true;        ///< if true, shuffles the documents by `seed` first; else neighbors share rows
  uint64_t seed = 0;
};

/// Packs documents into rows of fixed length, first-fit decreasing within each window: the longest document comes
/// first, and each goes into the first row with enough space. A document that is longer than a row is cut into full
/// rows and a remainder. Each token is in exactly one row; empty documents are in none.
/// Params: lengths – tokens of each document
/// Cost:   24 bytes per piece; O(log window) per document
/// Throws: c10::ValueError if an option is below 1 or if a length is negative
Packing pack_rows(const std::vector<int64_t>& lengths, const PackingOptions& options);

/// A source whose samples are rows of packed documents. A sample holds int64 arrays "tokens", "segment_ids" (1, 2, …
/// for its pieces, 0 where it is empty) and "position_ids" (from 0 in each piece), each [row_length].
///
/// Attention must stay inside the segments: see attention_mask and cumulative_lengths. next_tokens returns the targets
/// of language modeling. Any order can shuffle the rows.
/// Params: field – of `source`: an integer array [tokens], or a file, of which each byte is a token
/// Throws: c10::ValueError if `packing` was made for another source or its pieces do not fit into its rows. read()
///         throws c10::ValueError if a document lacks the field, has another type or is shorter than when it was packed
SourcePtr packed(SourcePtr source, std::string field, Packing packing);

/// The attention mask of packed rows: a token attends to the tokens of its own segment, with `causal` only up to
/// itself. For at::scaled_dot_product_attention.
/// Shapes: segment_ids [N, T] → bool [N, 1, T, T]
at::Tensor attention_mask(const at::Tensor& segment_ids, bool causal = true);

/// True at the positions of padded rows that are not padding; for at::scaled_dot_product_attention as mask[:, None,
/// None, :].
/// Params: lengths – of Dataset::pad
/// Shapes: lengths [N] → bool [N, length], on the device of `lengths`
at::Tensor padding_mask(const at::Tensor& lengths, int64_t length);

/// The start of each segment in the concatenated rows, and their total length: the argument cu_seqlens of attention
/// over sequences of varying length. Runs of empty positions are segments of their own.
/// Shapes: segment_ids [N, T] → int32 [segments + 1], on the device of `segment_ids`
at::Tensor cumulative_lengths(const at::Tensor& segment_ids);

/// The next token in the same segment; `ignore` at the end of a segment and at empty positions.
/// Shapes: tokens, segment_ids [N, T] → [N, T]
at::Tensor next_tokens(const at::Tensor& tokens, const at::Tensor& segment_ids, int64_t ignore = -100);

}  // namespace bellows::data
