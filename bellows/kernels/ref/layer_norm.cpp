// LayerNorm and RMSNorm, written as the formulas, in double.
#include <cmath>
#include <vector>

#include "bellows/kernels/layer_norm.h"
#include "bellows/kernels/layer_norm_formula.h"
#include "bellows/kernels/ref/values.h"

namespace bellows::kernels::ref {

void norm_forward(const NormForward& args) {
  const c10::ScalarType acc = accumulation_type(args.dtype);
  const int64_t n = args.columns;
  for (int64_t row = 0; row < args.rows; ++row) {
    double mean = 0, square = 0;
    for (int64_t i = 0; args.mean && i < n; ++i) mean += value_at(args.x, args.dtype, row * n + i) / n;
    for (int64_t i = 0; i < n; ++i) square += std::pow(value_at(args.x, args.dtype, row * n + i) - mean, 2) / n;
    const NormOfRow<double> of_row{mean, 1 / std::sqrt(square + args.eps)};
    if (args.mean) set_value_at(args.mean, acc, row, mean);
    set_value_at(args.rstd, acc, row, of_row.rstd);
    for (int64_t i = 0; i < n; ++i) {
      const double weight = args.weight ? value_at(args.weight, acc, i) : 1;
      const double bias = args.bias ? value_at(args.bias, acc, i) : 0;
      const double x = value_at(args.x, args.dtype, row * n + i);
      set_value_at(args.y, args.dtype, row * n + i, of_row.value(x, weight, bias));
    }
  }
}

void norm_backward(const NormBackward& args) {
  const c10::ScalarType acc = accumulation_type(args.dtype);
  const int64_t n = args.columns;
  std::vector<double> dweight(n), dbias(n), g(n);
  for (int64_t row = 0; row < args.rows; ++row) {
    const NormOfRow<double> of_row{args.mean ? value_at(args.mean, acc, row) : 0, value_at(args.rstd, acc, row)};
    double mean_g = 0, mean_gx = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double dy = value_at(args.dy, args.dtype, row * n + i);
      const double xhat = of_row.normalized(value_at(args.x, args.dtype, row * n + i));
      g[i] = dy * (args.weight ? value_at(args.weight, acc, i) : 1);
      dweight[i] += dy * xhat;
      dbias[i] += dy;
      if (args.mean) mean_g += g[i] / n;
      mean_gx += g[i] * xhat / n;
    }
    for (int64_t i = 0; args.dx && i < n; ++i) {
      const double x = value_at(args.x, args.dtype, row * n + i);
      set_value_at(args.dx, args.dtype, row * n + i, of_row.gradient(x, g[i], mean_g, mean_gx));
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    if (args.dweight) set_value_at(args.dweight, acc, i, dweight[i]);
    if (args.dbias) set_value_at(args.dbias, acc, i, dbias[i]);
  }
}

}  // namespace bellows::kernels::ref
