#include "bellows/quant/checkpoint.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "bellows/quant/formats/awq.h"
#include "bellows/quant/formats/compressed_tensors.h"
#include "bellows/quant/formats/gptq.h"
#include "bellows/quant/layer_table.h"
#include "bellows/quant/quantized_model.h"

namespace bellows::quant {

namespace {

/// The tensor that each quantized layer of a format has.
std::string marker_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::gptq:
    case WeightFormat::gptq_v2:
    case WeightFormat::awq:
      return "qweight";
    case WeightFormat::pack_quantized:
      return "weight_packed";
    default:
      return "weight_scale";
  }
}

QuantizedLinear linear_of(const NamedTensors& tensors, const QuantizationConfig& config) {
  switch (config.format) {
    case WeightFormat::gptq:
      return from_gptq(tensors, config.weights, 1);
    case WeightFormat::gptq_v2:
      return from_gptq(tensors, config.weights, 2);
    case WeightFormat::awq:
      return from_awq(tensors, config.weights);
    case WeightFormat::pack_quantized:
      return from_pack_quantized(tensors, config.weights);
    default:
      return from_int_quantized(tensors, config.weights);
  }
}

NamedTensors tensors_of(const QuantizedLinear& linear, const QuantizationConfig& config) {
  switch (config.format) {
    case WeightFormat::gptq:
      return to_gptq(linear, 1);
    case WeightFormat::gptq_v2:
      return to_gptq(linear, 2);
    case WeightFormat::awq:
      return to_awq(linear);
    case WeightFormat::pack_quantized:
      return to_pack_quantized(linear);
    default:
      return to_int_quantized(linear);
  }
}

void check_supported(const QuantizationConfig& config) {
  config.check();
  TORCH_CHECK_VALUE(!config.is_float,
                    "quantized checkpoint: weights in fp8 cannot be computed with. Dequantize them "
                    "(from_float_quantized()).");
  if (!config.inputs) return;
  const ActivationConfig& inputs = *config.inputs;
  TORCH_CHECK_VALUE(!inputs.is_float && inputs.scheme.bits == 8 && inputs.scheme.symmetric,
                    "quantized checkpoint: expected activations in symmetric int8, got ",
                    inputs.is_float ? "fp8" : inputs.scheme.to_text(), ".");
  TORCH_CHECK_VALUE(config.weights == weight_scheme(8),
                    "quantized checkpoint: int8 activations need symmetric int8 weights with one scale per output "
                    "channel, got ",
                    config.weights.to_text(), ".");
}

/// The entries whose names start with `prefix`, without it.
NamedTensors below(const NamedTensors& tensors, const std::string& prefix) {
  NamedTensors found;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) found.emplace_back(name.substr(prefix.size()), tensor);
  }
  return found;
}

at::Tensor find(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& one) { return one.first == name; });
  return found == tensors.end() ? at::Tensor() : found->second;
}

void set_input(QuantizedLayer& layer, const NamedTensors& tensors, const QuantizationConfig& config) {
  if (!config.inputs) return;
  layer.input = {.scale = at::ones({}), .zero_point = at::zeros({}, at::kInt)};
  layer.method = config.inputs->dynamic ? Method::dynamic : Method::static_range;
  if (config.inputs->dynamic) return;
  const at::Tensor scale = find(tensors, "input_scale");
  TORCH_CHECK_VALUE(scale.defined() && scale.numel() == 1 && scale.is_floating_point(),
                    "quantized checkpoint: the layer \"", layer.name,
                    "\" needs the tensor input_scale with one floating-point number.");
  layer.input.scale = scale.to(at::kFloat).reshape({});
  layer.input_is_signed = true;
}

/// Throws: c10::ValueError if the format cannot store the layer
void check_layer(const QuantizedLayer& layer, const QuantizationConfig& config) {
  const auto refuse = [&](const std::string& why) {
    TORCH_CHECK_VALUE(false, "quantized checkpoint: the format ", name_of(config.format), " cannot store the layer \"",
                      layer.name, "\": ", why, ".");
  };
  if (layer.kind == LayerKind::embedding)
    refuse("it is an embedding. Quantize with `quantize_embeddings` set to false");
  if (layer.kind != LayerKind::linear) refuse("it is a convolution");
  if (layer.reads_rows) refuse("it shares its weight with an embedding. Add it to `skip`");
  if (layer.bias.defined() || layer.divisors.defined()) refuse("its bias was corrected, or its input is divided");
  if (!(layer.weight.scheme == config.weights))
    refuse("its weight has the scheme " + layer.weight.scheme.to_text() + ", but the configuration has " +
           config.weights.to_text());
  const Method expected = !config.inputs           ? Method::weight_only
                          : config.inputs->dynamic ? Method::dynamic
                                                   : Method::static_range;
  if (layer.method != expected)
    refuse(std::string("its method is ") + name_of(layer.method) + ", but the configuration describes " +
           name_of(expected));
  if (expected == Method::static_range && (!layer.input_is_signed || layer.input.zero_point.item<int>() != 0))
    refuse("its input has a zero point");
}

}  // namespace

Quantized load_checkpoint(const NamedTensors& tensors, const QuantizationConfig& config, const Model& model) {
  check_supported(config);
  const std::string marker = marker_of(config.format);
  std::vector<QuantizedLayer> layers;
  NamedTensors others = tensors;
  for (const auto& [parameter, weight] : model.named_parameters()) {
    const std::string prefix = tensor_prefix(parameter);
    if (weight.dim() != 2 || !parameter.ends_with("weight") || !find(tensors, prefix + marker).defined()) continue;
    NamedTensors own = below(tensors, prefix);
    std::erase_if(own, [](const auto& one) { return one.first == "bias" || one.first.find('.') != std::string::npos; });
    QuantizedLinear linear = linear_of(own, config);
    QuantizedLayer layer{.name = layer_name(parameter),
                         .parameter = parameter,
                         .method = Method::weight_only,
                         .weight = std::move(linear.weight),
                         .input_order = std::move(linear.input_order)};
    set_input(layer, own, config);
    std::erase_if(others, [&](const auto& one) {
      return one.first.starts_with(prefix) && find(own, one.first.substr(prefix.size())).defined();
    });
    layers.push_back(std::move(layer));
  }
  TORCH_CHECK_VALUE(!layers.empty(), "quantized checkpoint: no linear of the model has a tensor \"", marker,
                    "\". Check that the checkpoint was made for this model and has the format ", name_of(config.format),
                    ".");
  load_unquantized(model, others, layers, "The quantized checkpoint");
  return with_layers(model, std::move(layers), /*release_weights=*/true);
}

NamedTensors to_checkpoint(const Quantized& quantized, const QuantizationConfig& config) {
  check_supported(config);
  NamedTensors tensors = quantized.model.named_parameters();
  for (const auto& buffer : quantized.original.named_buffers()) tensors.push_back(buffer);
  for (const QuantizedLayer& layer : *quantized.layers) {
    check_layer(layer, config);
    const std::string prefix = tensor_prefix(layer.parameter);
    const QuantizedLinear linear{
        .weight = {.values = layer.integers(), .parameters = layer.weight.parameters, .scheme = layer.weight.scheme},
        .input_order = layer.input_order};
    for (auto& [name, tensor] : tensors_of(linear, config)) tensors.emplace_back(prefix + name, tensor);
    if (config.inputs && !config.inputs->dynamic)
      tensors.emplace_back(prefix + "input_scale", layer.input.scale.reshape({1}));
  }
  return tensors;
}

}  // namespace bellows::quant
