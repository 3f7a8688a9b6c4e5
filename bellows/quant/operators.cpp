#include "bellows/quant/operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/round.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <optional>

#include "bellows/kernels/weight_only_linear.h"
#include "bellows/quant/packed.h"

namespace bellows::quant {

namespace {

using MaybeTensor = std::optional<at::Tensor>;

constexpr double largest_signed = 127;
constexpr double largest_power = 255;  ///< the integer of e^0 in the softmax of attention

void check_floating(const at::Tensor& input) {
  TORCH_CHECK_VALUE(input.is_floating_point() && input.dim() > 0,
                    "quantization: expected a floating-point tensor with at least one dim, got ",
                    c10::toString(input.scalar_type()), " ", input.sizes(), ".");
}

void check_layer(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& weight_scale) {
  const auto is_8_bit = [](const at::Tensor& one) {
    return one.scalar_type() == at::kChar || one.scalar_type() == at::kByte;
  };
  TORCH_CHECK_VALUE(is_8_bit(input) && weight.scalar_type() == at::kChar && weight_scale.dim() == 1 &&
                        weight.dim() > 0 && weight_scale.size(0) == weight.size(0),
                    "quantized layer: expected an 8-bit input, an int8 weight and one scale per output channel, got ",
                    c10::toString(input.scalar_type()), ", ", c10::toString(weight.scalar_type()), " ", weight.sizes(),
                    " and scales of shape ", weight_scale.sizes(), ".");
}

at::Tensor quantize_kernel(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& zero_point,
                           bool is_signed) {
  check_floating(input);
  const at::Tensor scaled = at::round(input.to(at::kFloat) * scale.reciprocal()) + zero_point;
  const double low = is_signed ? -largest_signed - 1 : 0;
  return scaled.nan_to_num(low, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity())
      .clamp(low, low + 255)
      .to(is_signed ? at::kChar : at::kByte);
}

at::Tensor dequantize_kernel(const at::Tensor& values, const at::Tensor& scale, const at::Tensor& zero_point) {
  return (values.to(at::kFloat) - zero_point) * scale;
}

/// The exact integer product of a signed input [rows, n] and a weight [m, n].
at::Tensor integer_product(const at::Tensor& input, const at::Tensor& weight) {
  // libtorch 2.11 computes wrong products for matrices with a single column.
  if (weight.size(1) == 1) return input.to(at::kInt) * weight.t().to(at::kInt);
  return at::_int_mm(input.contiguous(), weight.t());
}

at::Tensor linear_kernel(const at::Tensor& input, const at::Tensor& input_scale, const at::Tensor& zero_point,
                         const at::Tensor& weight, const at::Tensor& weight_scale, const MaybeTensor& bias) {
  check_layer(input, weight, weight_scale);
  TORCH_CHECK_VALUE(weight.dim() == 2 && input.dim() > 0 && input.size(-1) == weight.size(1),
                    "quantized linear: expected an input with ", weight.size(-1), " features for a weight of shape ",
                    weight.sizes(), ", got ", input.sizes(), ".");
  const bool is_signed = input.scalar_type() == at::kChar;
  const at::Tensor rows = input.reshape({-1, input.size(-1)});
  const at::Tensor shifted = is_signed ? rows : (rows.to(at::kShort) - 128).to(at::kChar);
  const at::Tensor zero = is_signed ? zero_point : zero_point - 128;
  const at::Tensor correction = zero * weight.sum(1, /*keepdim=*/false, at::kInt);
  at::Tensor result = (integer_product(shifted, weight) - correction).to(at::kFloat);
  result = result.mul_(input_scale * weight_scale);
  if (bias) result.add_(bias->to(at::kFloat));
  std::vector<int64_t> shape = input.sizes().vec();
  shape.back() = weight.size(0);
  return result.view(shape);
}

at::Tensor convolution_kernel(const at::Tensor& input, const at::Tensor& input_scale, const at::Tensor& zero_point,
                              const at::Tensor& weight, const at::Tensor& weight_scale, const MaybeTensor& bias,
                              at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                              int64_t groups) {
  check_layer(input, weight, weight_scale);
  // fp32 holds each integer, and sums below 2^24 exactly.
  const at::Tensor image = input.to(at::kFloat) - zero_point;
  const at::Tensor sums = at::convolution(image, weight.to(at::kFloat), {}, stride, padding, dilation,
                                          /*transposed=*/false, std::vector<int64_t>(stride.size(), 0), groups);
  std::vector<int64_t> channel(sums.dim(), 1);
  channel[1] = -1;
  const at::Tensor scaled = sums * (input_scale * weight_scale).view(channel);
  return bias ? scaled + bias->to(at::kFloat).view(channel) : scaled;
}

/// Integers as fp32 or double, which hold them exactly.
at::Tensor integers_of(const at::Tensor& x, const at::Tensor& scale, at::ScalarType dtype) {
  return quantize_kernel(x, scale, at::zeros({}, at::kInt), /*is_signed=*/true).to(dtype);
}

at::Tensor attention_kernel(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& query_scale, const at::Tensor& key_scale, const at::Tensor& value_scale,
                            std::optional<double> scale) {
  TORCH_CHECK_VALUE(
      query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && query.size(0) == key.size(0) &&
          query.size(1) == key.size(1) && query.size(3) == key.size(3) && key.size(0) == value.size(0) &&
          key.size(1) == value.size(1) && key.size(2) == value.size(2),
      "quantized attention: expected a query [batch, heads, rows, width], a key [batch, heads, keys, width] "
      "and a value [batch, heads, keys, value width], got ",
      query.sizes(), ", ", key.sizes(), " and ", value.sizes(), ".");
  const auto factor = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3)))));
  const at::Tensor sums = at::matmul(integers_of(query, query_scale, at::kDouble),
                                     integers_of(key, key_scale, at::kDouble).transpose(2, 3));
  const at::Tensor logits = sums.to(at::kFloat) * (query_scale * key_scale * factor);
  const at::Tensor powers = at::exp(logits - logits.amax(-1, /*keepdim=*/true)).mul(largest_power).round();
  const at::Tensor mixed = at::matmul(powers.to(at::kDouble), integers_of(value, value_scale, at::kDouble));
  const at::Tensor result = mixed.to(at::kFloat) * (value_scale / powers.sum(-1, /*keepdim=*/true));
  return result.transpose(1, 2).contiguous().transpose(1, 2);
}

kernels::WeightFormat format_of(int64_t bits, bool is_signed, bool has_zero_points, int64_t outputs, int64_t inputs,
                                int64_t group_size) {
  return {.bits = static_cast<int>(bits),
          .is_signed = is_signed,
          .has_zero_points = has_zero_points,
          .columns = outputs,
          .inner = inputs,
          .group_size = group_size};
}

at::Tensor weight_only_kernel(const at::Tensor& input, const at::Tensor& packed, const MaybeTensor& bias, int64_t bits,
                              bool is_signed, bool has_zero_points, int64_t outputs, int64_t inputs,
                              int64_t group_size) {
  check_floating(input);
  TORCH_CHECK_VALUE(input.size(-1) == inputs, "weight-only linear: expected an input with ", inputs,
                    " features, got the shape ", input.sizes(), ".");
  const kernels::WeightFormat format = format_of(bits, is_signed, has_zero_points, outputs, inputs, group_size);
  TORCH_CHECK_VALUE(
      packed.is_cpu() && packed.is_contiguous() && packed.nbytes() == kernels::packed_weight_bytes(format),
      "weight-only linear: expected ", kernels::packed_weight_bytes(format), " bytes of packed weight, got ",
      packed.nbytes(), ".");
  const at::ScalarType dtype = input.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  const at::Tensor rows = input.reshape({-1, inputs}).to(dtype).contiguous();
  at::Tensor added;
  if (bias) {
    TORCH_CHECK_VALUE(bias->dim() == 1 && (bias->size(0) == outputs || bias->size(0) == 1),
                      "weight-only linear: expected a bias with ", outputs, " numbers, got the shape ", bias->sizes(),
                      ".");
    added = bias->to(at::kFloat).expand({outputs}).contiguous();
  }
  at::Tensor result = at::empty({rows.size(0), outputs}, rows.options());
  const at::Tensor scratch = at::empty(
      {static_cast<int64_t>(kernels::weight_only_linear_scratch_bytes(dtype, format, rows.size(0)))}, packed.options());
  kernels::weight_only_linear({.dtype = dtype,
                               .rows = rows.size(0),
                               .x = rows.const_data_ptr(),
                               .x_row = inputs,
                               .format = format,
                               .packed = packed.const_data_ptr(),
                               .bias = added.defined() ? added.const_data_ptr<float>() : nullptr,
                               .y = result.mutable_data_ptr(),
                               .y_row = outputs,
                               .scratch = scratch.mutable_data_ptr()});
  std::vector<int64_t> shape = input.sizes().vec();
  shape.back() = outputs;
  return result.view(shape).to(input.scalar_type());
}

MaybeTensor some(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

template <class Kernel>
auto operator_of(const char* name, Kernel*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Kernel>();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def("quantize(Tensor input, Tensor scale, Tensor zero_point, bool is_signed) -> Tensor",
              {at::Tag::pt2_compliant_tag});
  library.def("dequantize(Tensor values, Tensor scale, Tensor zero_point) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.def(
      "quantized_linear(Tensor input, Tensor input_scale, Tensor zero_point, Tensor weight, Tensor weight_scale,"
      " Tensor? bias) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "quantized_convolution(Tensor input, Tensor input_scale, Tensor zero_point, Tensor weight, Tensor weight_scale,"
      " Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "quantized_attention(Tensor query, Tensor key, Tensor value, Tensor query_scale, Tensor key_scale,"
      " Tensor value_scale, float? scale) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "weight_only_linear(Tensor input, Tensor packed, Tensor? bias, int bits, bool is_signed, bool has_zero_points,"
      " int outputs, int inputs, int group_size) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CompositeExplicitAutograd, library) {
  library.impl("quantize", quantize_kernel);
  library.impl("dequantize", dequantize_kernel);
  library.impl("quantized_linear", linear_kernel);
  library.impl("quantized_convolution", convolution_kernel);
  library.impl("quantized_attention", attention_kernel);
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("weight_only_linear", weight_only_kernel);
}

at::Tensor quantize_activations(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& zero_point,
                                bool is_signed) {
  static const auto op = operator_of("bellows::quantize", quantize_kernel);
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(input, scale, zero_point, is_signed);
}

at::Tensor dequantize_activations(const QuantizedInput& input) {
  static const auto op = operator_of("bellows::dequantize", dequantize_kernel);
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(input.values, input.scale, input.zero_point);
}

QuantizedInput quantize_rows(const at::Tensor& input, const at::Tensor& zero_point) {
  check_floating(input);
  const at::Tensor largest = input.to(at::kFloat).abs().amax(-1, /*keepdim=*/true);
  const at::Tensor scale = largest.mul(1 / largest_signed).clamp_min(std::numeric_limits<float>::min());
  return {quantize_activations(input, scale, zero_point, /*is_signed=*/true), scale, zero_point};
}

at::Tensor quantized_linear(const QuantizedInput& input, const at::Tensor& weight, const at::Tensor& weight_scale,
                            const at::Tensor& bias) {
  static const auto op = operator_of("bellows::quantized_linear", linear_kernel);
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(input.values, input.scale, input.zero_point, weight, weight_scale, some(bias));
}

PackedWeight pack_weight(const QuantizedTensor& weight) {
  const Scheme& scheme = weight.scheme;
  TORCH_CHECK_VALUE(weight.values.dim() == 2 && (scheme.granularity == Granularity::group ||
                                                 (scheme.granularity == Granularity::channel && scheme.axis == 0)),
                    "weight-only linear: expected a matrix with scales per output channel or group, got ",
                    weight.values.sizes(), " with ", scheme.to_text(), ".");
  PackedWeight packed{.bits = scheme.bits == 4 ? 4 : 8,
                      .is_signed = scheme.is_signed,
                      .has_zero_points = scheme.has_zero_points(),
                      .outputs = weight.values.size(0),
                      .inputs = weight.values.size(1)};
  packed.group_size = scheme.granularity == Granularity::group ? scheme.group_size : packed.inputs;
  const kernels::WeightFormat format = format_of(packed.bits, packed.is_signed, packed.has_zero_points, packed.outputs,
                                                 packed.inputs, packed.group_size);
  const at::Tensor values = packed.bits == 4 ? pack_bits(weight.values, 4) : weight.values.contiguous();
  const at::Tensor scale = weight.parameters.scale.contiguous(), zero = weight.parameters.zero_point.contiguous();
  packed.data = at::empty({static_cast<int64_t>(kernels::packed_weight_bytes(format))}, at::kByte);
  kernels::pack_weight({.format = format,
                        .values = values.const_data_ptr(),
                        .scales = scale.const_data_ptr<float>(),
                        .zero_points = packed.has_zero_points ? zero.const_data_ptr<int32_t>() : nullptr},
                       packed.data.mutable_data_ptr());
  return packed;
}

at::Tensor unpack_weight(const PackedWeight& weight) {
  const kernels::WeightFormat format = format_of(weight.bits, weight.is_signed, weight.has_zero_points, weight.outputs,
                                                 weight.inputs, weight.group_size);
  const auto dtype = weight.is_signed ? at::kChar : at::kByte;
  const int64_t row_bytes = weight.bits == 4 ? (weight.inputs + 1) / 2 : weight.inputs;
  const at::Tensor values = at::empty({weight.outputs, row_bytes}, weight.bits == 4 ? at::kByte : dtype);
  kernels::unpack_weight(weight.data.const_data_ptr(), format, values.mutable_data_ptr());
  return weight.bits == 4 ? unpack_bits(values, 4, weight.inputs, weight.is_signed) : values;
}

at::Tensor weight_only_linear(const at::Tensor& input, const PackedWeight& weight, const at::Tensor& bias) {
  static const auto op = operator_of("bellows::weight_only_linear", weight_only_kernel);
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(input, weight.data, some(bias), weight.bits, weight.is_signed, weight.has_zero_points, weight.outputs,
                 weight.inputs, weight.group_size);
}

at::Tensor quantized_convolution(const QuantizedInput& input, const at::Tensor& weight, const at::Tensor& weight_scale,
                                 const at::Tensor& bias, const ConvolutionArguments& arguments) {
  static const auto op = operator_of("bellows::quantized_convolution", convolution_kernel);
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(input.values, input.scale, input.zero_point, weight, weight_scale, some(bias), arguments.stride,
                 arguments.padding, arguments.dilation, arguments.groups);
}

at::Tensor quantized_attention(const AttentionOperands& operands, std::optional<double> scale) {
  static const auto op = operator_of("bellows::quantized_attention", attention_kernel);
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(operands.query, operands.key, operands.value, operands.query_scale, operands.key_scale,
                 operands.value_scale, scale);
}

}  // namespace bellows::quant
