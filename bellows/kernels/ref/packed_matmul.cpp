// Matmuls with a packed matrix, written as the formula.
#include "bellows/kernels/packed_matmul.h"

#include "bellows/kernels/ref/values.h"

namespace bellows::kernels::ref {
namespace {

int64_t panel_columns(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double ? 16 : 32;
}

/// The place of an element in a packed matrix.
int64_t packed_place(c10::ScalarType dtype, int64_t inner, int64_t k, int64_t column) {
  const int64_t width = panel_columns(dtype);
  return (column / width * inner + k) * width + column % width;
}

}  // namespace

void pack_matrix(const MatrixToPack& args) {
  const int64_t width = panel_columns(args.dtype), padded = (args.columns + width - 1) / width * width;
  for (int64_t k = 0; k < args.inner; ++k) {
    for (int64_t column = 0; column < padded; ++column) {
      const double value =
          column < args.columns ? value_at(args.from, args.dtype, k * args.row + column * args.column) : 0;
      set_value_at(args.to, accumulation_type(args.dtype), packed_place(args.dtype, args.inner, k, column), value);
    }
  }
}

void packed_matmul(const PackedMatmul& args) {
  const c10::ScalarType acc = accumulation_type(args.dtype);
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t column = 0; column < args.columns; ++column) {
      double sum = 0;
      for (int64_t k = 0; k < args.inner; ++k) {
        sum += value_at(args.left, args.dtype, row * args.left_row + k * args.left_column) *
               value_at(args.packed, acc, packed_place(args.dtype, args.inner, k, column));
      }
      if (args.bias) sum += value_at(args.bias, args.dtype, column);
      if (args.added) sum += value_at(args.added, args.dtype, row * args.columns + column);
      set_value_at(args.result, args.dtype, row * args.columns + column, sum);
    }
  }
}

}  // namespace bellows::kernels::ref
