#include "bellows/quant/formats/compressed_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>

#include "bellows/quant/formats/layer_tensors.h"

namespace bellows::quant {

namespace {

constexpr const char* pack_format = "pack-quantized";
constexpr const char* int_format = "int-quantized";
constexpr const char* float_format = "float-quantized";

/// The scheme of the result, as a matrix has it: one scale for the whole weight becomes one for each row.
Scheme row_scheme(Scheme scheme) {
  if (scheme.granularity != Granularity::tensor) return scheme;
  scheme.granularity = Granularity::channel;
  scheme.axis = 0;
  return scheme;
}

/// Reads [out, groups], or [1] for one scale.
at::Tensor read_scales(const LayerTensors& file, int64_t out, int64_t in, const Scheme& scheme) {
  const int64_t groups = groups_of(in, row_scheme(scheme), file.format());
  if (scheme.granularity != Granularity::tensor) return file.scales("weight_scale", {out, groups});
  return file.scales("weight_scale", {1}).expand({out, 1});
}

bool has_one_scale(const Scheme& scheme) {
  return scheme.granularity == Granularity::tensor;
}

/// Params: parameter – [out, groups]
at::Tensor stored_parameter(const at::Tensor& parameter, const Scheme& scheme) {
  return has_one_scale(scheme) ? parameter.reshape(-1).slice(0, 0, 1) : parameter;
}

/// Signed integers of a file have the zero points of the matrix minus 2^(bits − 1).
QuantizedLinear layer_of(const UnsignedMatrix& matrix, Scheme scheme, const LayerTensors& file) {
  scheme.is_signed = true;
  scheme.narrow_range = false;
  QuantizedLinear layer = from_unsigned(matrix, row_scheme(scheme), file.format());
  if (!has_one_scale(scheme)) return layer;
  layer.weight.scheme = scheme;
  layer.weight.parameters = {.scale = layer.weight.parameters.scale[0].clone(),
                             .zero_point = layer.weight.parameters.zero_point[0].clone()};
  return layer;
}

void read_group_index(const LayerTensors& file, UnsignedMatrix& matrix) {
  if (file.find("weight_g_idx").defined())
    matrix.group_index = file.get("weight_g_idx", at::kInt, {matrix.values.size(1)});
}

void write_shared(const QuantizedLinear& layer, const UnsignedMatrix& matrix, at::ScalarType scale_dtype,
                  const char* format, NamedTensors& tensors) {
  tensors.emplace_back("weight_scale",
                       stored_scales(stored_parameter(matrix.scale, layer.weight.scheme), scale_dtype, format));
  if (layer.input_order.defined()) tensors.emplace_back("weight_g_idx", matrix.group_index);
}

}  // namespace

NamedTensors to_pack_quantized(const QuantizedLinear& layer, at::ScalarType scale_dtype) {
  const int bits = layer.weight.scheme.bits;
  check_bits(pack_format, bits, {2, 4, 8});
  const UnsignedMatrix matrix = to_unsigned(layer, pack_format);
  const auto shape = matrix.values.sizes();
  NamedTensors tensors{{"weight_packed", pack_words(matrix.values, bits)},
                       {"weight_shape", at::tensor({shape[0], shape[1]}, at::kLong)}};
  write_shared(layer, matrix, scale_dtype, pack_format, tensors);
  if (layer.weight.scheme.symmetric) return tensors;
  TORCH_CHECK_VALUE(!has_one_scale(layer.weight.scheme), "pack-quantized: expected a scale per output channel or per ",
                    "group for zero points, got ", layer.weight.scheme.to_text(), ".");
  const at::Tensor columns = matrix.zero_point.t().to(at::kByte).contiguous();
  tensors.emplace_back("weight_zero_point", pack_words(columns, bits).t().contiguous());
  return tensors;
}

QuantizedLinear from_pack_quantized(const NamedTensors& tensors, const Scheme& scheme) {
  const int bits = scheme.bits;
  check_bits(pack_format, bits, {2, 4, 8});
  const LayerTensors file(tensors, pack_format);
  const at::Tensor words = file.get("weight_packed", at::kInt, {-1, -1});
  const at::Tensor shape = file.get("weight_shape", at::kLong, {2});
  const auto out = shape[0].item<int64_t>(), in = shape[1].item<int64_t>();
  TORCH_CHECK_VALUE(
      out == words.size(0) && in > 0 && in <= words.size(1) * 32 && (in * bits + 31) / 32 == words.size(1),
      "pack-quantized: \"weight_shape\" is [", out, ", ", in, "], but \"weight_packed\" has the shape ", words.sizes(),
      " and ", bits, " bits.");
  UnsignedMatrix matrix{.values = unpack_words(words, bits, in), .scale = read_scales(file, out, in, scheme)};
  if (scheme.symmetric || has_one_scale(scheme)) {
    matrix.zero_point = at::full_like(matrix.scale, 1 << (bits - 1), at::kInt);
  } else {
    const at::Tensor zeros = file.get("weight_zero_point", at::kInt, {(out * bits + 31) / 32, matrix.scale.size(1)});
    matrix.zero_point = unpack_words(zeros.t(), bits, out).t().to(at::kInt);
  }
  read_group_index(file, matrix);
  return layer_of(matrix, scheme, file);
}

NamedTensors to_int_quantized(const QuantizedLinear& layer, at::ScalarType scale_dtype) {
  const Scheme& scheme = layer.weight.scheme;
  scheme.check();
  const UnsignedMatrix matrix = to_unsigned(layer, int_format);
  const int offset = 1 << (scheme.bits - 1);
  NamedTensors tensors{{"weight", (matrix.values.to(at::kInt) - offset).to(at::kChar)}};
  write_shared(layer, matrix, scale_dtype, int_format, tensors);
  if (scheme.symmetric) return tensors;
  tensors.emplace_back("weight_zero_point",
                       stored_parameter((matrix.zero_point - offset).to(at::kChar), scheme).contiguous());
  return tensors;
}

QuantizedLinear from_int_quantized(const NamedTensors& tensors, const Scheme& scheme) {
  scheme.check();
  const LayerTensors file(tensors, int_format);
  const at::Tensor weight = file.get("weight", at::kChar, {-1, -1});
  const int64_t out = weight.size(0), in = weight.size(1), offset = int64_t{1} << (scheme.bits - 1);
  const auto lowest = weight.min().item<int64_t>(), highest = weight.max().item<int64_t>();
  TORCH_CHECK_VALUE(lowest >= -offset && highest < offset, "int-quantized: expected integers in [", -offset, ", ",
                    offset - 1, "] for ", scheme.bits, " bits, found values in [", lowest, ", ", highest, "].");
  UnsignedMatrix matrix{.values = (weight.to(at::kInt) + offset).to(at::kByte),
                        .scale = read_scales(file, out, in, scheme)};
  if (scheme.symmetric) {
    matrix.zero_point = at::full_like(matrix.scale, offset, at::kInt);
  } else {
    const std::vector<int64_t> shape = has_one_scale(scheme) ? std::vector<int64_t>{1} : matrix.scale.sizes().vec();
    const at::Tensor zeros = file.get("weight_zero_point", at::kChar, shape).to(at::kInt) + offset;
    matrix.zero_point = has_one_scale(scheme) ? zeros.expand({out, 1}) : zeros;
  }
  read_group_index(file, matrix);
  return layer_of(matrix, scheme, file);
}

NamedTensors to_float_quantized(const Float8Tensor& weight, at::ScalarType scale_dtype) {
  TORCH_CHECK_VALUE(weight.values.defined() && weight.values.dim() == 2 && weight.scale.defined(),
                    "float-quantized: expected a weight of shape [out, in] with scales.");
  const int64_t out = weight.values.size(0);
  const at::Tensor scale = has_one_scale(weight.scheme) ? weight.scale.reshape({1}) : weight.scale.reshape({out, -1});
  return {{"weight", weight.values}, {"weight_scale", stored_scales(scale, scale_dtype, float_format)}};
}

Float8Tensor from_float_quantized(const NamedTensors& tensors, const Scheme& granularity) {
  const LayerTensors file(tensors, float_format);
  const at::Tensor found = file.find("weight");
  const bool is_e5m2 = found.defined() && found.scalar_type() == at::kFloat8_e5m2;
  const at::Tensor weight = file.get("weight", is_e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn, {-1, -1});
  const at::Tensor scale = read_scales(file, weight.size(0), weight.size(1), granularity);
  const auto shaped = [&] {
    if (has_one_scale(granularity)) return scale[0][0].clone();
    return granularity.granularity == Granularity::channel ? scale.reshape({-1}) : scale;
  };
  return {.values = weight, .scale = shaped(), .scheme = granularity};
}

}  // namespace bellows::quant
