#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bellows/quant/affine.h"
#include "bellows/tap/op_ref.h"

namespace bellows::quant {

/// An operator call that reads whole rows of a matrix: an embedding, or a slice or selection along dim 0, as of position
/// embeddings.
struct RowsCall {
  const at::Tensor* weight = nullptr;   ///< [m, n]
  const at::Tensor* indices = nullptr;  ///< null: the operator returns a view of the rows
  std::optional<int64_t> begin{}, end{};
  int64_t step = 1;
  bool one_row = false;  ///< whether the view is the row `begin`, without dim 0

  /// Returns the same rows of another matrix.
  /// Shapes: [m, k] → [*, k]
  /// Throws: c10::IndexError as libtorch's operators if a row is out of range
  at::Tensor rows_of(const at::Tensor& matrix) const;
};

/// Returns the call if the operator reads rows of a floating-point matrix. Whether the matrix is a parameter is not checked.
/// Params: arguments – of the operator; the result refers to them
std::optional<RowsCall> rows_call(const tap::OpRef& op, std::span<c10::IValue> arguments);

/// Returns whether the scheme has scales for rows, or for groups of a row.
bool has_row_scales(const Scheme& scheme);
/// Returns the scheme of embeddings: that of the other weights, with one scale per row if it has no scales for rows.
Scheme embedding_scheme(Scheme weights);

/// The weight of an embedding in the form from which rows are read.
///
/// Numerics: rows are equal to those of QuantizedTensor::dequantize(), in eager and in compiled calls
struct EmbeddingRows {
  /// int8 or uint8 [m, n]. If `halves`, uint8 [m, n / 2]: byte j has the columns j (low half) and j + n / 2 (high half), as
  /// integer minus smallest integer.
  at::Tensor values{};
  at::Tensor scales{};       ///< fp32 [m, groups]
  at::Tensor zero_points{};  ///< fp32 [m, groups]; undefined: 0
  bool halves = false;
  Scheme scheme{};

  /// Returns rows in a floating-point dtype. It consists of operators that compiled functions fuse.
  /// Shapes: → [*, n]
  at::Tensor read(const RowsCall& call, at::ScalarType dtype) const;
  /// Returns the integers: int8 or uint8, [m, n].
  at::Tensor integers() const;
  int64_t columns() const { return values.size(1) * (halves ? 2 : 1); }
  int64_t bytes() const;
};

/// Arranges a weight [m, n]. Integers of 4 bits need 4 bits in memory if n is even, all others 8.
/// Throws: c10::ValueError if the weight is no matrix, or if its scales are not those of rows or groups
EmbeddingRows embedding_rows(const QuantizedTensor& weight);

}  // namespace bellows::quant
