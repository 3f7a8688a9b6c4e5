#include "bellows/quant/file.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "bellows/io/tensors/safetensors.h"
#include "bellows/quant/layer_table.h"
#include "bellows/quant/packed.h"
#include "bellows/quant/quantized_model.h"
#include "bellows/quant/rows.h"

namespace bellows::quant {

namespace {

using Json = nlohmann::json;

constexpr std::string_view metadata_key = "bellows.quantization";
constexpr int first_version = 1, version_with_attention = 2, version_with_embeddings = 3;
constexpr int64_t largest_size = int64_t{1} << 40;

Json json_of(const QuantizedLayer& layer) {
  const Scheme& scheme = layer.weight.scheme;
  return {{"parameter", layer.parameter},
          {"kind", name_of(layer.kind)},
          {"method", name_of(layer.method)},
          {"norm", layer.norm},
          {"shape", layer.sizes()},
          {"bits", scheme.bits},
          {"signed", scheme.is_signed},
          {"symmetric", scheme.symmetric},
          {"narrow_range", scheme.narrow_range},
          {"granularity", name_of(scheme.granularity)},
          {"axis", scheme.axis},
          {"group_size", scheme.group_size},
          {"input_is_signed", layer.input_is_signed},
          {"quantizes_sums", layer.quantizes_sums},
          {"reads_rows", layer.reads_rows}};
}

/// Integers of fewer than 8 bits as packed rows.
std::pair<std::string, at::Tensor> stored_integers(const QuantizedLayer& layer) {
  const at::Tensor values = layer.integers();
  if (layer.weight.scheme.bits == 8) return {layer.parameter, values};
  return {layer.parameter + "_bits", pack_bits(values, layer.weight.scheme.bits)};
}

/// The tensors of a file by name. Each can be taken once, so that those left belong to the model.
class FileTensors {
 public:
  FileTensors(std::string path, const NamedTensors& tensors)
      : path_(std::move(path)), tensors_(tensors.begin(), tensors.end()) {}

  at::Tensor take_or_none(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return {};
    at::Tensor tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }

  at::Tensor take(const std::string& name, at::ScalarType dtype, at::IntArrayRef shape) {
    const at::Tensor tensor = take_or_none(name);
    TORCH_CHECK_VALUE(tensor.defined(), path_, ": the tensor \"", name, "\" is missing. The file is damaged.");
    TORCH_CHECK_VALUE(tensor.scalar_type() == dtype && tensor.sizes() == shape, path_, ": expected the tensor \"", name,
                      "\" as ", c10::toString(dtype), " ", shape, ", found ", c10::toString(tensor.scalar_type()), " ",
                      tensor.sizes(), ". The file is damaged.");
    return tensor;
  }

  NamedTensors rest() const { return {tensors_.begin(), tensors_.end()}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::unordered_map<std::string, at::Tensor> tensors_;
};

Scheme scheme_of(const Json& json) {
  Scheme scheme{.bits = json.at("bits").get<int>(),
                .is_signed = json.at("signed").get<bool>(),
                .symmetric = json.at("symmetric").get<bool>(),
                .narrow_range = json.at("narrow_range").get<bool>(),
                .granularity = granularity_of(json.at("granularity").get<std::string>()),
                .axis = json.at("axis").get<int64_t>(),
                .group_size = json.at("group_size").get<int64_t>()};
  scheme.check();
  return scheme;
}

std::vector<int64_t> shape_of(const Json& json) {
  auto shape = json.at("shape").get<std::vector<int64_t>>();
  const bool valid =
      shape.size() >= 2 && shape.size() <= 5 &&
      std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size > 0 && size < largest_size; });
  TORCH_CHECK_VALUE(valid, "expected a shape of 2 to 5 positive sizes, got ", json.at("shape").dump());
  return shape;
}

/// Checks the order of the inputs, because indices out of range would read other memory.
at::Tensor order_of(const at::Tensor& order, int64_t inputs) {
  if (!order.defined()) return order;
  const bool is_order = order.scalar_type() == at::kLong && order.sizes() == at::IntArrayRef({inputs}) &&
                        std::get<0>(order.sort()).equal(at::arange(inputs, at::kLong));
  TORCH_CHECK_VALUE(is_order, "the order of the inputs is not a permutation");
  return order;
}

void check_numbers(const QuantizedLayer& layer) {
  for (const at::Tensor& scale : {layer.weight.parameters.scale, layer.input.scale, layer.result_scale}) {
    TORCH_CHECK_VALUE(!scale.defined() || (at::isfinite(scale) & (scale > 0)).all().item<bool>(),
                      "a scale of the layer \"", layer.name, "\" is not a positive number");
  }
  const Scheme& scheme = layer.weight.scheme;
  const bool integers = scheme.is_int8_per_output();
  const bool matrix = layer.weight.values.dim() == 2, linear = layer.kind == LayerKind::linear && matrix;
  const bool embedding = layer.kind == LayerKind::embedding && matrix;
  const bool rows = !layer.reads_rows || (matrix && layer.kind != LayerKind::convolution && has_row_scales(scheme) &&
                                          !layer.divisors.defined() && !layer.input_order.defined());
  const bool fits = !rows                                 ? false
                    : layer.method == Method::weight_only ? linear || embedding || layer.kind == LayerKind::convolution
                    : layer.method == Method::static_range
                        ? integers && (linear || (layer.kind == LayerKind::convolution && !matrix))
                        : integers && linear;
  TORCH_CHECK_VALUE(fits, "the layer \"", layer.name, "\" (", name_of(layer.kind), ", ", name_of(layer.method),
                    ") cannot have a weight of shape ", layer.weight.values.sizes(), " in ", scheme.to_text());
}

/// Throws: Json::exception or c10::ValueError if a field is missing or has another type or value
QuantizedLayer layer_of(const Json& json, FileTensors& tensors) {
  const auto parameter = json.at("parameter").get<std::string>();
  const std::string prefix = tensor_prefix(parameter);
  QuantizedLayer layer{.name = layer_name(parameter),
                       .parameter = parameter,
                       .method = method_of(json.at("method").get<std::string>()),
                       .norm = json.at("norm").get<std::string>(),
                       .input_is_signed = json.at("input_is_signed").get<bool>()};
  layer.kind = layer_kind(json.at("kind").get<std::string>());
  layer.quantizes_sums = json.value("quantizes_sums", false) && layer.method == Method::static_range &&
                         layer.kind == LayerKind::convolution;
  layer.reads_rows = json.value("reads_rows", false) || layer.kind == LayerKind::embedding;
  const Scheme scheme = scheme_of(json);
  const std::vector<int64_t> shape = shape_of(json), parameters = parameter_shape(shape, scheme);
  const auto dtype = scheme.is_signed ? at::kChar : at::kByte;
  if (scheme.bits == 8) {
    layer.weight.values = tensors.take(parameter, dtype, shape);
  } else {
    std::vector<int64_t> packed = shape;
    packed.back() = (shape.back() * scheme.bits + 7) / 8;
    layer.weight.values =
        unpack_bits(tensors.take(parameter + "_bits", at::kByte, packed), scheme.bits, shape.back(), scheme.is_signed);
  }
  layer.weight.scheme = scheme;
  const at::Tensor scale = tensors.take(parameter + "_scale", at::kFloat, parameters);
  layer.weight.parameters = {.scale = scale,
                             .zero_point = scheme.has_zero_points()
                                               ? tensors.take(parameter + "_zero_point", at::kInt, parameters)
                                               : at::zeros_like(scale, at::kInt)};
  if (layer.method != Method::weight_only)
    layer.input = {.scale = tensors.take(prefix + "input_scale", at::kFloat, {}),
                   .zero_point = tensors.take(prefix + "input_zero_point", at::kInt, {})};
  if (const at::Tensor result = tensors.take_or_none(prefix + "result_scale"); result.defined()) {
    TORCH_CHECK_VALUE(result.scalar_type() == at::kFloat && result.dim() == 0 && layer.kind == LayerKind::linear &&
                          layer.method == Method::static_range,
                      "only static linears have one scale of their result, in float32; that of \"", layer.name,
                      "\" is ", c10::toString(result.scalar_type()), " ", result.sizes());
    layer.result_scale = result;
  }
  layer.bias = tensors.take_or_none(prefix + "bias_replacement");
  layer.divisors = tensors.take_or_none(prefix + "input_divisors");
  layer.input_order = order_of(tensors.take_or_none(prefix + "input_order"), shape.back());
  check_numbers(layer);
  const auto fits = [](const at::Tensor& vector, int64_t size) {
    return !vector.defined() || (vector.scalar_type() == at::kFloat && vector.sizes() == at::IntArrayRef({size}));
  };
  TORCH_CHECK_VALUE(fits(layer.bias, shape[0]) && fits(layer.divisors, shape.back()),
                    "the bias or the divisors of the layer \"", layer.name, "\" have a wrong shape");
  return layer;
}

std::optional<std::string> description(const io::SafetensorsMetadata& metadata) {
  for (const auto& [key, text] : metadata) {
    if (key == metadata_key) return text;
  }
  return {};
}

std::vector<QuantizedLayer> layers_in(const std::string& text, FileTensors& tensors) {
  const std::string& path = tensors.path();
  std::vector<QuantizedLayer> layers;
  try {
    const Json json = Json::parse(text);
    const int version = json.at("version").get<int>();
    TORCH_CHECK_VALUE(version >= first_version && version <= version_with_embeddings, "it has version ", version,
                      ", expected ", first_version, " to ", version_with_embeddings,
                      ". Load it with the version of this library that wrote it, or a later one");
    for (const Json& one : json.at("layers")) layers.push_back(layer_of(one, tensors));
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, path, ": the description of the quantized layers is damaged: ", error.what(), ".");
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    TORCH_CHECK_VALUE(false,
                      what.starts_with(path) ? what : path + ": damaged description of quantized layers: " + what);
  }
  return layers;
}

}  // namespace

void save_quantized(const std::string& path, const Quantized& quantized) {
  NamedTensors tensors = quantized.model.named_parameters();
  for (const auto& buffer : quantized.original.named_buffers()) tensors.push_back(buffer);
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) tensors.emplace_back(name, tensor);
  };
  Json layers = Json::array();
  int version = first_version;
  for (const QuantizedLayer& layer : *quantized.layers) {
    layers.push_back(json_of(layer));
    tensors.emplace_back(stored_integers(layer));
    add(layer.parameter + "_scale", layer.weight.parameters.scale);
    if (layer.weight.scheme.has_zero_points()) add(layer.parameter + "_zero_point", layer.weight.parameters.zero_point);
    const std::string prefix = tensor_prefix(layer.parameter);
    add(prefix + "input_scale", layer.input.scale);
    add(prefix + "input_zero_point", layer.input.zero_point);
    add(prefix + "bias_replacement", layer.bias);
    add(prefix + "result_scale", layer.result_scale);
    if (layer.result_scale.defined()) version = std::max(version, version_with_attention);
    if (layer.reads_rows) version = version_with_embeddings;
    add(prefix + "input_divisors", layer.divisors);
    add(prefix + "input_order", layer.input_order);
  }
  const Json description{{"version", version}, {"layers", std::move(layers)}};
  io::save_safetensors(path, tensors, {.metadata = {{std::string(metadata_key), description.dump()}}});
}

bool is_quantized_file(const std::string& path) {
  return description(io::SafetensorsFile(path).metadata()).has_value();
}

Quantized load_quantized(const std::string& path, const Model& model) {
  std::optional<std::string> text;
  FileTensors tensors = [&] {
    const io::SafetensorsFile file(path);
    text = description(file.metadata());
    TORCH_CHECK_VALUE(text, path, " does not contain a quantized model: its metadata has no entry \"", metadata_key,
                      "\". Load it with load_state_dict().");
    NamedTensors all;
    for (const io::SafetensorsEntry& entry : file.entries()) all.emplace_back(entry.name, file.tensor(entry));
    return FileTensors(path, all);
  }();
  std::vector<QuantizedLayer> layers = layers_in(*text, tensors);
  load_unquantized(model, tensors.rest(), layers, path);
  return with_layers(model, std::move(layers), /*release_weights=*/true);
}

}  // namespace bellows::quant
