// Batch norm over rows, written as the formulas, in double.
#include "bellows/kernels/batch_norm.h"

#include <cmath>

#include "bellows/kernels/ref/values.h"

namespace bellows::kernels::ref {

void batch_norm_forward(const BatchNormForward& args) {
  const auto n = static_cast<double>(args.rows);
  for (int64_t c = 0; c < args.channels; ++c) {
    const auto x = [&](int64_t row) { return value_at(args.x, args.dtype, row * args.channels + c); };
    double mean = 0, variance = 0;
    for (int64_t row = 0; row < args.rows; ++row) mean += x(row) / n;
    for (int64_t row = 0; row < args.rows; ++row) variance += std::pow(x(row) - mean, 2) / n;
    const double invstd = 1 / std::sqrt(variance + args.eps);
    const double factor = invstd * (args.weight ? args.weight[c] : 1), bias = args.bias ? args.bias[c] : 0;
    args.mean[c] = static_cast<float>(mean);
    args.variance[c] = static_cast<float>(variance);
    args.invstd[c] = static_cast<float>(invstd);
    for (int64_t row = 0; row < args.rows; ++row) {
      const double y = (x(row) - mean) * factor + bias;
      set_value_at(args.y, args.dtype, row * args.channels + c, args.relu && y <= 0 ? 0 : y);
    }
  }
}

void batch_norm_backward(const BatchNormBackward& args) {
  const auto n = static_cast<double>(args.rows);
  for (int64_t c = 0; c < args.channels; ++c) {
    const double mean = args.mean[c], invstd = args.invstd[c];
    const double factor = invstd * (args.weight ? args.weight[c] : 1), bias = args.bias ? args.bias[c] : 0;
    const auto deviation = [&](int64_t row) { return value_at(args.x, args.dtype, row * args.channels + c) - mean; };
    const auto gradient = [&](int64_t row) {
      const bool stopped = args.relu && deviation(row) * factor + bias <= 0;
      return stopped ? 0 : value_at(args.dy, args.dtype, row * args.channels + c);
    };
    double sum = 0, along = 0;
    for (int64_t row = 0; row < args.rows; ++row) {
      sum += gradient(row);
      along += gradient(row) * deviation(row) * invstd;
    }
    if (args.dweight) args.dweight[c] = static_cast<float>(along);
    if (args.dbias) args.dbias[c] = static_cast<float>(sum);
    for (int64_t row = 0; row < args.rows; ++row) {
      const double dx = factor * (gradient(row) - (sum + deviation(row) * invstd * along) / n);
      set_value_at(args.dx, args.dtype, row * args.channels + c, dx);
    }
  }
}

}  // namespace bellows::kernels::ref
