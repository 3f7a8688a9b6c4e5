// Dropout, residual and norm, written as the formulas, in double.
#include "bellows/kernels/dropout_norm.h"

#include "bellows/kernels/dropout_hash.h"
#include "bellows/kernels/ref/values.h"

namespace bellows::kernels::ref {

bool dropout_keeps(const DropoutMask& dropout, int64_t row, int64_t column) {
  return dropout_hash(DropoutRow(dropout.seed, row), column) >= dropout_threshold(dropout.p);
}

void dropout_norm_forward(const DropoutNormForward& args) {
  const NormForward& norm = args.norm;
  for (int64_t i = 0; i < norm.rows * norm.columns; ++i) {
    const bool keeps = dropout_keeps(args.dropout, i / norm.columns, i % norm.columns);
    const double x = keeps ? value_at(args.x, norm.dtype, i) / (1 - args.dropout.p) : 0;
    set_value_at(args.sum, norm.dtype, i, value_at(args.residual, norm.dtype, i) + x);
  }
  NormForward of_sum = norm;
  of_sum.x = args.sum;
  ref::norm_forward(of_sum);
}

void dropout_norm_backward(const DropoutNormBackward& args) {
  const NormBackward& norm = args.norm;
  ref::norm_backward(norm);
  for (int64_t i = 0; norm.dx && i < norm.rows * norm.columns; ++i) {
    const double own = args.dsum ? value_at(args.dsum, norm.dtype, i) : 0;
    const double dsum = value_at(norm.dx, norm.dtype, i) + own;
    const bool keeps = dropout_keeps(args.dropout, i / norm.columns, i % norm.columns);
    set_value_at(norm.dx, norm.dtype, i, dsum);
    if (args.dx) set_value_at(args.dx, norm.dtype, i, keeps ? dsum / (1 - args.dropout.p) : 0);
  }
}

}  // namespace bellows::kernels::ref
