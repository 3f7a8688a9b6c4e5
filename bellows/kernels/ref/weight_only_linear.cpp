// Linear layers with quantized weights, written as the formula.
#include "bellows/kernels/weight_only_linear.h"

#include "bellows/kernels/ref/values.h"

namespace bellows::kernels::ref {
namespace {

int integer_at(const QuantizedWeight& weight, int64_t column, int64_t k) {
  const auto* const bytes = static_cast<const uint8_t*>(weight.values);
  const WeightFormat& format = weight.format;
  if (format.bits == 8) {
    const uint8_t byte = bytes[column * format.inner + k];
    return format.is_signed ? static_cast<int8_t>(byte) : byte;
  }
  const uint8_t byte = bytes[column * ((format.inner + 1) / 2) + k / 2];
  const int half = k % 2 ? byte >> 4 : byte & 15;
  return format.is_signed && half >= 8 ? half - 16 : half;
}

}  // namespace

void weight_only_linear(const QuantizedWeight& weight, const WeightOnlyLinear& args) {
  const WeightFormat& format = weight.format;
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t column = 0; column < format.columns; ++column) {
      double sum = args.bias ? args.bias[column] : 0;
      for (int64_t k = 0; k < format.inner; ++k) {
        const int64_t group = (column * format.inner + k) / format.group_size;
        const int zero_point = weight.zero_points ? weight.zero_points[group] : 0;
        sum += value_at(args.x, args.dtype, row * args.x_row + k) *
               (static_cast<double>(weight.scales[group]) * (integer_at(weight, column, k) - zero_point));
      }
      set_value_at(args.y, args.dtype, row * args.y_row + column, sum);
    }
  }
}

}  // namespace bellows::kernels::ref
