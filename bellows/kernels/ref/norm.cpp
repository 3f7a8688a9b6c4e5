// LayerNorm and RMSNorm as the formulas stand, in double.
#include <cmath>
#include <vector>

#include "bellows/kernels/norm.h"

namespace bellows::kernels::ref {

namespace {

double norm_value(const void* values, c10::ScalarType dtype, int64_t i) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return static_cast<const double*>(values)[i];
    case c10::ScalarType::BFloat16:
      return static_cast<const c10::BFloat16*>(values)[i];
    case c10::ScalarType::Half:
      return static_cast<const c10::Half*>(values)[i];
    default:
      return static_cast<const float*>(values)[i];
  }
}

void set_norm_value(void* values, c10::ScalarType dtype, int64_t i, double value) {
  switch (dtype) {
    case c10::ScalarType::Double:
      static_cast<double*>(values)[i] = value;
      break;
    case c10::ScalarType::BFloat16:
      static_cast<c10::BFloat16*>(values)[i] = static_cast<float>(value);
      break;
    case c10::ScalarType::Half:
      static_cast<c10::Half*>(values)[i] = static_cast<float>(value);
      break;
    default:
      static_cast<float*>(values)[i] = static_cast<float>(value);
  }
}

c10::ScalarType sum_type(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double ? dtype : c10::ScalarType::Float;
}

}  // namespace

void norm_forward(const NormForward& args) {
  const c10::ScalarType acc = sum_type(args.dtype);
  const int64_t n = args.columns;
  for (int64_t row = 0; row < args.rows; ++row) {
    double mean = 0, square = 0;
    for (int64_t i = 0; args.mean && i < n; ++i) mean += norm_value(args.x, args.dtype, row * n + i) / n;
    for (int64_t i = 0; i < n; ++i) square += std::pow(norm_value(args.x, args.dtype, row * n + i) - mean, 2) / n;
    const double rstd = 1 / std::sqrt(square + args.eps);
    if (args.mean) set_norm_value(args.mean, acc, row, mean);
    set_norm_value(args.rstd, acc, row, rstd);
    for (int64_t i = 0; i < n; ++i) {
      const double weight = args.weight ? norm_value(args.weight, acc, i) : 1;
      const double bias = args.bias ? norm_value(args.bias, acc, i) : 0;
      const double x = norm_value(args.x, args.dtype, row * n + i);
      set_norm_value(args.y, args.dtype, row * n + i, (x - mean) * rstd * weight + bias);
    }
  }
}

void norm_backward(const NormBackward& args) {
  const c10::ScalarType acc = sum_type(args.dtype);
  const int64_t n = args.columns;
  std::vector<double> dweight(n), dbias(n), xhat(n), g(n);
  for (int64_t row = 0; row < args.rows; ++row) {
    const double mean = args.mean ? norm_value(args.mean, acc, row) : 0, rstd = norm_value(args.rstd, acc, row);
    double mean_g = 0, mean_gx = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double dy = norm_value(args.dy, args.dtype, row * n + i);
      xhat[i] = (norm_value(args.x, args.dtype, row * n + i) - mean) * rstd;
      g[i] = dy * (args.weight ? norm_value(args.weight, acc, i) : 1);
      dweight[i] += dy * xhat[i];
      dbias[i] += dy;
      if (args.mean) mean_g += g[i] / n;
      mean_gx += g[i] * xhat[i] / n;
    }
    for (int64_t i = 0; args.dx && i < n; ++i) {
      set_norm_value(args.dx, args.dtype, row * n + i, rstd * (g[i] - mean_g - xhat[i] * mean_gx));
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    if (args.dweight) set_norm_value(args.dweight, acc, i, dweight[i]);
    if (args.dbias) set_norm_value(args.dbias, acc, i, dbias[i]);
  }
}

}  // namespace bellows::kernels::ref
