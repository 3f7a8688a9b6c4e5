#pragma once

#include "bellows/data/source.h"

#include <string>
#include <vector>

namespace bellows::data {

/// A part of one document.
struct Piece {
  int64_t document = 0;  ///< position of the document in the source
  int64_t begin = 0, length = 0;
};

/// The assignment of pieces of documents to rows.
struct Packing {
  std::vector<Piece> pieces;        ///< all pieces, row by row
  std::vector<int64_t> row_starts;  ///< index of the first piece of each row; the last element is the number of pieces
  int64_t row_length = 0;

  int64_t rows() const { return static_cast<int64_t>(row_starts.size()) - 1; }
  /// Returns the share of positions that are empty.
  double padding_share() const;
};

struct PackingOptions {
  int64_t row_length = 1024;  ///< number of tokens per row
  /// Number of documents that are packed together. They are consecutive in the source or, with `shuffle`, in the
  /// shuffled sequence.
  int64_t window = 4096;
  /// If true, documents are shuffled with `seed` before they are packed. Otherwise, neighboring documents share rows.
  bool shuffle = true;
  uint64_t seed = 0;
};

/// Packs documents into rows of fixed length. Within each window, the algorithm is first-fit decreasing. Documents are
/// processed from the longest to the shortest, and each document goes into the first row with enough space.
///
/// A document that is longer than a row is cut into full rows and a remainder. Each token is in exactly one row. Empty
/// documents are left out.
/// Params: lengths – number of tokens of each document
/// Cost:   24 bytes per piece; O(log window) per document
/// Throws: c10::ValueError if an option is below 1 or if a length is negative
Packing pack_rows(const std::vector<int64_t>& lengths, const PackingOptions& options);

/// Returns a source whose samples are rows of packed documents. A sample has three int64 arrays [row_length]:
/// - "tokens"
/// - "segment_ids": 1, 2, … for the pieces of the row, and 0 at empty positions
/// - "position_ids": positions within each piece, from 0
///
/// Attention must stay inside the segments (see attention_mask() and cumulative_lengths()). next_tokens() returns the
/// targets for language modeling. You can shuffle the rows with any order.
/// Params: field – name of a field of `source`: an integer array [tokens], or a file in which each byte is a token
/// Throws: c10::ValueError if `source` is null, if `packing` was made for a different source, or if its pieces do not
///         fit into its rows. read() throws c10::ValueError if a document lacks the field, if the field has the wrong
///         type, or if the document is shorter than when it was packed
SourcePtr packed(SourcePtr source, std::string field, Packing packing);

/// Returns the attention mask of packed rows for at::scaled_dot_product_attention. A token attends only to tokens of
/// its own segment. If `causal` is true, it attends only to itself and to earlier tokens of its segment.
/// Shapes: segment_ids [N, T] → bool [N, 1, T, T]
/// Throws: c10::ValueError if segment_ids is not [N, T]
at::Tensor attention_mask(const at::Tensor& segment_ids, bool causal = true);

/// Returns a mask that is true at all positions that are not padding. Pass it to at::scaled_dot_product_attention as
/// mask[:, None, None, :].
/// Params: lengths – lengths from Dataset::pad()
/// Shapes: lengths [N] → bool [N, length], on the device of `lengths`
/// Throws: c10::ValueError if `lengths` is not [N]
at::Tensor padding_mask(const at::Tensor& lengths, int64_t length);

/// Returns the start of each segment in the concatenated rows, and the total length of the rows. Pass the result as the
/// argument cu_seqlens to an attention function for sequences of varying length. A run of empty positions is a separate
/// segment.
/// Shapes: segment_ids [N, T] → int32 [segments + 1], on the device of `segment_ids`
/// Throws: c10::ValueError if segment_ids is not [N, T]
at::Tensor cumulative_lengths(const at::Tensor& segment_ids);

/// Returns the next token in the same segment for each position. The value is `ignore` at the end of a segment and at
/// empty positions.
/// Shapes: tokens, segment_ids [N, T] → [N, T]
/// Throws: c10::ValueError if segment_ids is not [N, T], or if the shape of `tokens` differs
at::Tensor next_tokens(const at::Tensor& tokens, const at::Tensor& segment_ids, int64_t ignore = -100);

}  // namespace bellows::data
