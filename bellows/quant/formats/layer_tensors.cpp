#include "bellows/quant/formats/layer_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>

#include "bellows/quant/packed.h"

namespace bellows::quant {

namespace {

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += shape[i] < 0 ? "*" : std::to_string(shape[i]);
  }
  return text + "]";
}

/// A scheme with one scale for each row or each group of neighbors in a row.
bool has_matrix_scales(const Scheme& scheme) {
  return scheme.granularity != Granularity::channel || scheme.axis == 0 || scheme.axis == -2;
}

at::Tensor parameter_matrix(const at::Tensor& parameter, int64_t out, int64_t groups, const std::string& format) {
  TORCH_CHECK_VALUE(parameter.defined() && (parameter.dim() == 0 || parameter.numel() == out * groups), format,
                    ": expected scales and zero points of shape [", out, ", ", groups, "], got ",
                    parameter.defined() ? c10::str(parameter.sizes()) : "an undefined tensor", ".");
  return (parameter.dim() == 0 ? parameter.expand({out, groups}) : parameter.reshape({out, groups})).contiguous();
}

/// The group of each input, in the order of the inputs.
at::Tensor group_index_of(const QuantizedLinear& layer, int64_t groups, const std::string& format) {
  const int64_t inputs = layer.weight.values.size(1);
  const at::Tensor in_order = at::arange(inputs, at::kInt).floor_divide(inputs / groups);
  if (!layer.input_order.defined()) return in_order;
  TORCH_CHECK_VALUE(layer.input_order.scalar_type() == at::kLong && layer.input_order.dim() == 1 &&
                        std::get<0>(layer.input_order.sort()).equal(at::arange(inputs, at::kLong)),
                    format, ": expected an input order that contains each of the ", inputs, " inputs once.");
  return in_order.index_select(0, at::argsort(layer.input_order));
}

void check_group_index(const at::Tensor& index, int64_t groups, const std::string& format) {
  const auto lowest = index.min().item<int64_t>(), highest = index.max().item<int64_t>();
  TORCH_CHECK_VALUE(lowest >= 0 && highest < groups, format, ": expected groups in [0, ", groups - 1,
                    "] in the group index, found values in [", lowest, ", ", highest, "].");
  const at::Tensor sizes = at::bincount(index, {}, groups);
  TORCH_CHECK_VALUE(sizes.eq(index.size(0) / groups).all().item<bool>(), format, ": expected ", groups, " groups of ",
                    index.size(0) / groups, " inputs in the group index, found groups of ", sizes.min().item<int64_t>(),
                    " to ", sizes.max().item<int64_t>(), " inputs.");
}

}  // namespace

at::Tensor QuantizedLinear::dequantize(at::ScalarType dtype) const {
  const at::Tensor columns = weight.dequantize(dtype);
  return input_order.defined() ? columns.index_select(1, at::argsort(input_order)) : columns;
}

at::Tensor LayerTensors::find(const std::string& name) const {
  for (const auto& [key, tensor] : tensors_) {
    if (key == name) return tensor;
  }
  return {};
}

at::Tensor LayerTensors::require(const std::string& name, at::IntArrayRef shape) const {
  const at::Tensor tensor = find(name);
  if (tensor.defined()) return tensor;
  std::string names;
  for (const auto& [key, ignored] : tensors_) names += (names.empty() ? "" : ", ") + key;
  TORCH_CHECK_VALUE(false, format_, ": expected a tensor \"", name, "\" of shape ", shape_text(shape),
                    ", found only: ", names.empty() ? "no tensors" : names, ".");
}

void LayerTensors::check_shape(const std::string& name, const at::Tensor& tensor, at::IntArrayRef shape) const {
  const bool fits = tensor.dim() == static_cast<int64_t>(shape.size()) &&
                    std::equal(shape.begin(), shape.end(), tensor.sizes().begin(),
                               [](int64_t expected, int64_t found) { return expected < 0 || expected == found; });
  TORCH_CHECK_VALUE(fits, format_, ": expected \"", name, "\" of shape ", shape_text(shape), ", found ",
                    shape_text(tensor.sizes()), ".");
}

at::Tensor LayerTensors::get(const std::string& name, at::ScalarType dtype, at::IntArrayRef shape) const {
  const at::Tensor tensor = require(name, shape);
  TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, format_, ": expected \"", name, "\" in ", c10::toString(dtype),
                    ", found ", c10::toString(tensor.scalar_type()), ".");
  check_shape(name, tensor, shape);
  TORCH_CHECK_VALUE(tensor.numel() > 0, format_, ": \"", name, "\" of shape ", shape_text(tensor.sizes()),
                    " contains no values.");
  return tensor.detach().to(at::kCPU).contiguous();
}

at::Tensor LayerTensors::scales(const std::string& name, at::IntArrayRef shape) const {
  const at::Tensor tensor = require(name, shape);
  TORCH_CHECK_VALUE(tensor.is_floating_point(), format_, ": expected floating-point scales in \"", name, "\", found ",
                    c10::toString(tensor.scalar_type()), ".");
  check_shape(name, tensor, shape);
  const at::Tensor scales = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
  TORCH_CHECK_VALUE((scales > 0).logical_and(at::isfinite(scales)).all().item<bool>(), format_,
                    ": expected positive, finite scales in \"", name, "\".");
  return scales;
}

void check_bits(const std::string& format, int bits, std::initializer_list<int> supported) {
  std::string list;
  for (const int one : supported) list += (list.empty() ? "" : ", ") + std::to_string(one);
  TORCH_CHECK_VALUE(std::find(supported.begin(), supported.end(), bits) != supported.end(), format, ": expected ", list,
                    " bits, got ", bits, ".");
}

at::Tensor pack_words(const at::Tensor& values, int bits) {
  const at::Tensor bytes = pack_bits(values, bits);
  const int64_t missing = (4 - bytes.size(-1) % 4) % 4;
  return at::constant_pad_nd(bytes, {0, missing}).contiguous().view(at::kInt);
}

at::Tensor unpack_words(const at::Tensor& words, int bits, int64_t n) {
  return unpack_bits(words.contiguous().view(at::kByte).slice(1, 0, (n * bits + 7) / 8), bits, n, /*is_signed=*/false);
}

UnsignedMatrix to_unsigned(const QuantizedLinear& layer, const std::string& format) {
  const QuantizedTensor& weight = layer.weight;
  TORCH_CHECK_VALUE(weight.values.defined() && weight.values.dim() == 2 && weight.values.numel() > 0 &&
                        has_matrix_scales(weight.scheme),
                    format, " (", weight.scheme.to_text(), "): expected a weight of shape [out, in] with a scale per ",
                    "output channel, per group, or for the whole weight.");
  const int64_t out = weight.values.size(0), in = weight.values.size(1);
  const int64_t groups = weight.scheme.granularity == Granularity::group ? groups_of(in, weight.scheme, format) : 1;
  const int offset = weight.scheme.is_signed ? 1 << (weight.scheme.bits - 1) : 0;
  const at::Tensor group_index = group_index_of(layer, groups, format);
  at::Tensor values = (weight.values.to(at::kInt) + offset).to(at::kByte);
  if (layer.input_order.defined()) values = values.index_select(1, at::argsort(layer.input_order));
  const at::Tensor zero_point =
      parameter_matrix(weight.parameters.zero_point, out, groups, format).to(at::kInt) + offset;
  const int64_t middle = int64_t{1} << (weight.scheme.bits - 1);
  TORCH_CHECK_VALUE(!weight.scheme.symmetric || zero_point.eq(middle).all().item<bool>(), format, " (",
                    weight.scheme.to_text(),
                    "): symmetric integers in files have the zero point 2^(bits − 1) = ", middle, ", found ",
                    zero_point.min().item<int64_t>(), " to ", zero_point.max().item<int64_t>(),
                    ". Use a signed scheme, or an affine one.");
  return {.values = values,
          .scale = parameter_matrix(weight.parameters.scale, out, groups, format),
          .zero_point = zero_point,
          .group_index = group_index};
}

QuantizedLinear from_unsigned(const UnsignedMatrix& matrix, const Scheme& scheme, const std::string& format) {
  const int64_t groups = matrix.scale.size(1), inputs = matrix.values.size(1), largest = (1 << scheme.bits) - 1;
  TORCH_CHECK_VALUE(matrix.zero_point.ge(0).logical_and(matrix.zero_point.le(largest)).all().item<bool>(), format,
                    ": expected zero points that ", scheme.bits, " bits can represent, found values outside of [0, ",
                    largest, "] after the shift to unsigned integers.");
  QuantizedLinear layer;
  at::Tensor values = matrix.values;
  if (matrix.group_index.defined()) {
    check_group_index(matrix.group_index, groups, format);
    const at::Tensor order = at::argsort(matrix.group_index, /*stable=*/true, /*dim=*/0, /*descending=*/false);
    if (!order.equal(at::arange(inputs, at::kLong))) {
      layer.input_order = order;
      values = values.index_select(1, order);
    }
  }
  const int offset = scheme.is_signed ? 1 << (scheme.bits - 1) : 0;
  const bool channel = scheme.granularity == Granularity::channel;
  const auto shaped = [&](const at::Tensor& one) { return channel ? one.reshape({-1}) : one.contiguous(); };
  layer.weight = {.values = (values.to(at::kInt) - offset).to(scheme.is_signed ? at::kChar : at::kByte),
                  .parameters = {.scale = shaped(matrix.scale), .zero_point = shaped(matrix.zero_point - offset)},
                  .scheme = scheme};
  return layer;
}

Scheme scheme_of_zero_points(const at::Tensor& zero_point, Scheme scheme) {
  scheme.symmetric = scheme.symmetric && zero_point.eq(1 << (scheme.bits - 1)).all().item<bool>();
  scheme.is_signed = scheme.symmetric;
  scheme.narrow_range = false;
  return scheme;
}

int64_t groups_of(int64_t inputs, const Scheme& scheme, const std::string& format) {
  if (scheme.granularity == Granularity::channel && scheme.axis == 0) return 1;
  TORCH_CHECK_VALUE(scheme.granularity == Granularity::group, format, ": expected a scale per output channel or per ",
                    "group, got ", scheme.to_text(), ".");
  TORCH_CHECK_VALUE(scheme.group_size >= 1 && inputs % scheme.group_size == 0, format,
                    ": expected a number of inputs that is a multiple of the group size ", scheme.group_size, ", got ",
                    inputs, ".");
  return inputs / scheme.group_size;
}

at::Tensor stored_scales(const at::Tensor& scale, at::ScalarType dtype, const std::string& format) {
  const at::Tensor stored = scale.to(dtype);
  TORCH_CHECK_VALUE((stored > 0).logical_and(at::isfinite(stored)).all().item<bool>(), format, ": the scales in [",
                    scale.min().item<float>(), ", ", scale.max().item<float>(), "] do not fit into ",
                    c10::toString(dtype), ".");
  return stored;
}

}  // namespace bellows::quant
