#include "bellows/data/order/packing.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

#include "bellows/data/fingerprint.h"
#include "bellows/data/order/integers.h"
#include "bellows/data/order/shuffle.h"

namespace bellows::data {

namespace {

/// Open rows: finds the first row with enough space for a piece (a tree of the maximum space below each node).
class OpenRows {
 public:
  OpenRows(int64_t row_length, size_t pieces)
      : leaves_(std::bit_ceil(std::max<size_t>(pieces, 1))), room_(2 * leaves_, row_length) {}

  /// Puts a piece of `length`, at most row_length, into a row and returns the row.
  size_t put(int64_t length) {
    size_t node = 1;
    while (node < leaves_) node = 2 * node + (room_[2 * node] >= length ? 0 : 1);
    room_[node] -= length;
    const size_t row = node - leaves_;
    while (node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return row;
  }

 private:
  size_t leaves_;
  std::vector<int64_t> room_;
};

/// Appends the packed pieces of one window to `packing`. There are at most as many rows as pieces.
void pack_window(std::vector<Piece>& window, Packing& packing) {
  std::stable_sort(window.begin(), window.end(), [](const Piece& a, const Piece& b) { return a.length > b.length; });
  OpenRows rows(packing.row_length, window.size());
  std::vector<std::pair<size_t, size_t>> row_and_piece;
  row_and_piece.reserve(window.size());
  for (size_t i = 0; i < window.size(); ++i) row_and_piece.emplace_back(rows.put(window[i].length), i);
  std::sort(row_and_piece.begin(), row_and_piece.end());
  for (size_t i = 0; i < row_and_piece.size(); ++i) {
    const auto [row, piece] = row_and_piece[i];
    packing.pieces.push_back(window[piece]);
    if (i + 1 == row_and_piece.size() || row_and_piece[i + 1].first != row)
      packing.row_starts.push_back(static_cast<int64_t>(packing.pieces.size()));
  }
  window.clear();
}

void check_packing(const Packing& packing, const Source& source) {
  for (const Piece& piece : packing.pieces)
    TORCH_CHECK_VALUE(piece.document >= 0 && piece.document < source.size(), "packed: the packing contains document ",
                      piece.document, ", but the source has ", source.size(), " samples (", source.describe(),
                      "). Pack the lengths of this source.");
  const std::vector<int64_t>& starts = packing.row_starts;
  const auto pieces = static_cast<int64_t>(packing.pieces.size());
  bool fits =
      !starts.empty() && starts.front() == 0 && starts.back() == pieces && std::is_sorted(starts.begin(), starts.end());
  for (size_t row = 1; fits && row < starts.size(); ++row) {
    int64_t left = packing.row_length;
    for (int64_t i = starts[row - 1]; fits && i < starts[row]; ++i) {
      const Piece& piece = packing.pieces[static_cast<size_t>(i)];
      fits = piece.begin >= 0 && piece.length > 0 && piece.length <= left;
      left -= piece.length;
    }
  }
  TORCH_CHECK_VALUE(fits, "packed: expected a packing made by pack_rows, got one whose pieces do not fit into rows of ",
                    packing.row_length, " tokens.");
}

class PackedSource final : public Source, public Derived {
 public:
  using Source::read;

  PackedSource(SourcePtr source, std::string field, Packing packing)
      : source_(std::move(source)), field_(std::move(field)), packing_(std::move(packing)) {
    TORCH_CHECK_VALUE(source_, "packed: expected a source, got null.");
    check_packing(packing_, *source_);
  }

  int64_t size() const override { return packing_.rows(); }
  const SourcePtr& origin() const override { return source_; }

  void read(int64_t index, Sample& row) const override {
    const auto length = static_cast<size_t>(packing_.row_length);
    row.clear();
    row.id = index;
    row.shapes = {packing_.row_length};
    row.buffer.assign(3 * length * sizeof(int64_t), std::byte{0});
    auto* tokens = reinterpret_cast<int64_t*>(row.buffer.data());
    fill(index, tokens, tokens + length, tokens + 2 * length);
    const std::span<const std::byte> bytes(row.buffer);
    const size_t part = length * sizeof(int64_t);
    size_t begin = 0;
    for (const char* name : {"tokens", "segment_ids", "position_ids"}) {
      Field& field = row.fields.emplace_back();
      field.name = name;
      field.bytes = bytes.subspan(begin, part);
      field.is_array = true;
      field.dtype = c10::ScalarType::Long;
      field.sizes = row.shapes;
      begin += part;
    }
  }

  bool prefetch(int64_t index) const override {
    const auto row = static_cast<size_t>(index);
    bool useful = false;
    for (int64_t i = packing_.row_starts[row]; i < packing_.row_starts[row + 1]; ++i)
      useful |= source_->prefetch(packing_.pieces[static_cast<size_t>(i)].document);
    return useful;
  }

  std::string describe() const override { return c10::str(size(), " rows packed from ", source_->describe()); }
  bool stored() const override { return source_->stored(); }

 private:
  void fill(int64_t index, int64_t* tokens, int64_t* segments, int64_t* places) const {
    const auto row = static_cast<size_t>(index);
    int64_t at = 0, segment = 0;
    Sample document;
    for (int64_t i = packing_.row_starts[row]; i < packing_.row_starts[row + 1]; ++i) {
      const Piece& piece = packing_.pieces[static_cast<size_t>(i)];
      source_->read(piece.document, document);
      copy_integers(checked(document, piece), piece.begin, piece.length, tokens + at);
      std::fill_n(segments + at, piece.length, ++segment);
      for (int64_t k = 0; k < piece.length; ++k) places[at + k] = k;
      at += piece.length;
    }
  }

  const Field& checked(const Sample& document, const Piece& piece) const {
    const Field* found = document.find(field_);
    TORCH_CHECK_VALUE(found, "packed: ", document.where(), " has no field \"", field_, "\".");
    TORCH_CHECK_VALUE(!found->is_array || found->sizes.size() == 1, "packed: ", document.where(found),
                      ": expected one row of tokens in \"", field_, "\", found sizes ", found->sizes, ".");
    const int64_t tokens = integer_count(*found);
    TORCH_CHECK_VALUE(tokens >= 0, "packed: ", document.where(found), ": expected integer tokens in \"", field_,
                      "\", found type ", c10::toString(found->dtype), ".");
    TORCH_CHECK_VALUE(piece.begin <= tokens - piece.length, "packed: ", document.where(found), " has ", tokens,
                      " tokens, but the packing expects at least ", piece.begin + piece.length,
                      ". Create the packing again.");
    return *found;
  }

  SourcePtr source_;
  std::string field_;
  Packing packing_;
};

}  // namespace

double Packing::padding_share() const {
  double used = 0;
  for (const Piece& piece : pieces) used += static_cast<double>(piece.length);
  return rows() > 0 ? 1 - used / (static_cast<double>(rows()) * static_cast<double>(row_length)) : 0;
}

Packing pack_rows(const std::vector<int64_t>& lengths, const PackingOptions& options) {
  TORCH_CHECK_VALUE(options.row_length > 0 && options.window > 0,
                    "pack_rows: expected a row length and a window of at least 1, got ", options.row_length, " and ",
                    options.window, ".");
  const auto documents = static_cast<int64_t>(lengths.size());
  const Positions order =
      options.shuffle ? permutation(documents, order_seed(options.seed)) : Positions::ascending(documents);
  Packing packing{{}, {0}, options.row_length};
  std::vector<Piece> window;
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t document = order[i], length = lengths[static_cast<size_t>(document)];
    TORCH_CHECK_VALUE(length >= 0, "pack_rows: document ", document, " has length ", length, ".");
    for (int64_t begin = 0; begin < length;) {
      window.push_back({document, begin, std::min(options.row_length, length - begin)});
      begin += window.back().length;
    }
    if ((i + 1) % options.window == 0 || i + 1 == documents) pack_window(window, packing);
  }
  return packing;
}

SourcePtr packed(SourcePtr source, std::string field, Packing packing) {
  return std::make_shared<PackedSource>(std::move(source), std::move(field), std::move(packing));
}

namespace {

void check_rows(const char* who, const at::Tensor& segment_ids) {
  TORCH_CHECK_VALUE(segment_ids.dim() == 2, who, ": expected segment_ids [N, T], got sizes ", segment_ids.sizes(), ".");
}

}  // namespace

at::Tensor attention_mask(const at::Tensor& segment_ids, bool causal) {
  check_rows("attention_mask", segment_ids);
  const at::Tensor mask = segment_ids.unsqueeze(1).eq(segment_ids.unsqueeze(2)).unsqueeze(1);
  return causal ? mask.tril() : mask;
}

at::Tensor padding_mask(const at::Tensor& lengths, int64_t length) {
  TORCH_CHECK_VALUE(lengths.dim() == 1, "padding_mask: expected lengths [N], got sizes ", lengths.sizes(), ".");
  return at::arange(length, lengths.options()).lt(lengths.unsqueeze(1));
}

at::Tensor cumulative_lengths(const at::Tensor& segment_ids) {
  check_rows("cumulative_lengths", segment_ids);
  at::Tensor begins = at::ones_like(segment_ids, at::kBool);
  const int64_t length = segment_ids.size(1);
  if (length > 1) begins.slice(1, 1).copy_(segment_ids.slice(1, 1).ne(segment_ids.slice(1, 0, length - 1)));
  const at::Tensor starts = at::nonzero(begins.flatten()).squeeze(1);
  const at::Tensor end = at::full({1}, segment_ids.numel(), starts.options());
  return at::cat({starts, end}).to(at::kInt);
}

at::Tensor next_tokens(const at::Tensor& tokens, const at::Tensor& segment_ids, int64_t ignore) {
  check_rows("next_tokens", segment_ids);
  TORCH_CHECK_VALUE(tokens.sizes() == segment_ids.sizes(), "next_tokens: expected tokens of the sizes of segment_ids, ",
                    segment_ids.sizes(), ", got ", tokens.sizes(), ".");
  at::Tensor targets = at::full_like(tokens, ignore);
  const int64_t length = tokens.size(1);
  if (length < 2) return targets;
  const at::Tensor segment = segment_ids.slice(1, 1);
  const at::Tensor follows = segment.eq(segment_ids.slice(1, 0, length - 1)).logical_and(segment.ne(0));
  targets.slice(1, 0, length - 1).copy_(at::where(follows, tokens.slice(1, 1), at::full_like(segment, ignore)));
  return targets;
}

}  // namespace bellows::data
