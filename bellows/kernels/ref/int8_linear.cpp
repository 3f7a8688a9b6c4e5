// Linear layers of integers, written as the formula.
#include "bellows/kernels/int8_linear.h"

#include <algorithm>
#include <cmath>

namespace bellows::kernels::ref {
namespace {

double after(const Int8Step& step, int64_t at, double x) {
  const auto sigmoid = [](double u) { return 1 / (1 + std::exp(-u)); };
  switch (step.kind) {
    case Int8Step::Kind::relu:
      return x < 0 ? 0 : x;
    case Int8Step::Kind::gelu:
      return x * (1 + std::erf(x * 0.70710678118654752440)) / 2;
    case Int8Step::Kind::gelu_tanh:
      return x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))) / 2;
    case Int8Step::Kind::tanh:
      return std::tanh(x);
    case Int8Step::Kind::sigmoid:
      return sigmoid(x);
    case Int8Step::Kind::silu:
      return x * sigmoid(x);
    case Int8Step::Kind::add:
      return x + step.added[at];
  }
  return x;
}

int64_t integer_at(const void* values, bool is_signed, int64_t at) {
  return is_signed ? static_cast<const int8_t*>(values)[at] : static_cast<const uint8_t*>(values)[at];
}

void put(const Int8Linear& args, int64_t at, double value) {
  if (args.result == Int8Result::fp32) {
    static_cast<float*>(args.y)[at] = static_cast<float>(value);
    return;
  }
  const bool is_signed = args.result == Int8Result::int8;
  const double low = is_signed ? -128 : 0, zero_point = args.y_zero_point ? *args.y_zero_point : 0;
  const double rounded = std::nearbyint(value / *args.y_scale) + zero_point;
  const double clamped = std::isnan(rounded) ? low : std::clamp(rounded, low, low + 255);
  static_cast<uint8_t*>(args.y)[at] = static_cast<uint8_t>(static_cast<int>(clamped));
}

}  // namespace

void int8_linear(const int8_t* weight, const Int8Linear& args) {
  const int64_t zero_point = args.x_zero_point ? *args.x_zero_point : 0;
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t column = 0; column < args.columns; ++column) {
      int64_t sum = 0;
      for (int64_t k = 0; k < args.inner; ++k)
        sum +=
            (integer_at(args.x, args.x_is_signed, row * args.inner + k) - zero_point) * weight[column * args.inner + k];
      double value = static_cast<double>(sum) * *args.x_scale * args.weight_scales[column];
      if (args.bias) value += args.bias[column];
      for (const Int8Step& step : args.steps) value = after(step, row * args.columns + column, value);
      put(args, row * args.columns + column, value);
    }
  }
}

}  // namespace bellows::kernels::ref
