#include "bellows/quant/quantize.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "bellows/quant/calibration.h"
#include "bellows/quant/comparison.h"
#include "bellows/quant/quantized_model.h"

namespace bellows::quant {

namespace {

void check_options(const Options& options) {
  options.weights.check();
  const Scheme& scheme = options.weights;
  const bool integers = options.method != Method::weight_only;
  const bool fits = scheme.bits == 8 && scheme.is_signed && scheme.symmetric &&
                    scheme.granularity == Granularity::channel && scheme.axis == 0;
  TORCH_CHECK_VALUE(!integers || fits, "quantization: the method ", name_of(options.method),
                    " needs weights in symmetric int8 with one scale per output channel, got ", scheme.to_text(),
                    ". Use the method weight_only for other weights.");
  TORCH_CHECK_VALUE(options.min_weights >= 0, "quantization: expected a number of weights of at least 0, got ",
                    options.min_weights, ".");
}

bool is_skipped(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

/// Why a layer stays in floating point although the user wants to quantize it, or empty.
std::string obstacle(const CalibratedLayer& layer, const Options& options) {
  if (!layer.kept.empty()) return layer.kept;
  if (layer.weight.scalar_type() == at::kDouble) return "the weight is float64";
  if (options.method == Method::dynamic && layer.kind != LayerKind::linear)
    return "dynamic quantization supports only linears";
  const Scheme& scheme = options.weights;
  if (scheme.granularity != Granularity::group) return "";
  if (layer.kind != LayerKind::linear) return "groups are supported only for linears";
  const int64_t inputs = layer.weight.size(-1);
  return inputs % scheme.group_size == 0
             ? ""
             : c10::str("groups of ", scheme.group_size, " do not divide its ", inputs, " inputs");
}

/// The weight and bias of a convolution and the batch norm behind it, as one convolution.
std::pair<at::Tensor, at::Tensor> folded(const CalibratedLayer& layer) {
  const CalibratedLayer::Norm& norm = *layer.norm;
  at::Tensor factor = (norm.variance.to(at::kFloat) + norm.eps).rsqrt();
  if (norm.weight.defined()) factor = factor * norm.weight;
  at::Tensor bias = layer.bias.defined() ? layer.bias - norm.mean : -norm.mean;
  bias = bias * factor;
  if (norm.bias.defined()) bias = bias + norm.bias;
  std::vector<int64_t> channel(layer.weight.dim(), 1);
  channel[0] = -1;
  return {layer.weight * factor.view(channel), bias.to(at::kFloat)};
}

QuantizedLayer quantized(const CalibratedLayer& layer, const Options& options, double& weight_sqnr) {
  QuantizedLayer made{.name = layer.name,
                      .kind = layer.kind,
                      .method = options.method,
                      .input = layer.input,
                      .input_is_signed = layer.input_is_signed};
  at::Tensor weight = layer.weight.detach();
  if (options.fold_norms && layer.norm && layer.kind == LayerKind::convolution) {
    std::tie(weight, made.bias) = folded(layer);
    made.norm = layer.norm->name;
  }
  weight = weight.to(at::kFloat);
  made.weight = quantize(weight, options.weights);
  weight_sqnr = sqnr(weight, made.weight.dequantize());
  if (options.method == Method::dynamic) made.input = {.scale = at::ones({}), .zero_point = at::zeros({}, at::kInt)};
  if (options.method == Method::weight_only) made.input = {};
  return made;
}

/// Lets layers with equal parameters share one tensor. If they have the same input, a compiled function then quantizes it
/// only once.
void share_input_parameters(std::vector<QuantizedLayer>& layers) {
  std::map<std::pair<float, int32_t>, Parameters> known;
  for (QuantizedLayer& layer : layers) {
    if (!layer.input.scale.defined()) continue;
    const std::pair values{layer.input.scale.item<float>(), layer.input.zero_point.item<int32_t>()};
    layer.input = known.try_emplace(values, layer.input).first->second;
  }
}

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

void check_result(const Report& report, const Options& options) {
  const bool any = report.quantized() > 0;
  std::string reasons;
  for (const LayerReport& layer : report.layers) {
    if (!layer.kept.empty()) reasons += "\n  " + layer.name + ": " + layer.kept;
  }
  TORCH_CHECK_VALUE(any, "quantization: no layer of the model can be quantized.",
                    reasons.empty() ? " It has no convolutions or linears whose weight is a parameter." : reasons);
  if (!options.strict) return;
  for (const LayerReport& layer : report.layers) {
    const bool wanted = !is_skipped(layer.name, options.skip) && layer.kept.find("fewer than") == std::string::npos;
    TORCH_CHECK_VALUE(layer.kept.empty() || !wanted, "quantization: the layer \"", layer.name,
                      "\" cannot be quantized: ", layer.kept,
                      ". Add it to `skip`, or set `strict` to false to keep such layers in floating point.");
  }
}

}  // namespace

Quantized with_layers(const Model& model, std::vector<QuantizedLayer> layers, bool release_weights) {
  Report report{.bytes_before = bytes_of(model.state_dict())};
  report.bytes_after = report.bytes_before;
  std::unordered_map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : model.named_parameters()) weights.emplace(name, tensor);
  for (const QuantizedLayer& layer : layers) {
    const auto weight = weights.find(layer.name + ".weight");
    TORCH_CHECK_VALUE(weight != weights.end(), "quantized model: the model has no parameter \"", layer.name,
                      ".weight\".");
    const auto before = static_cast<int64_t>(weight->second.nbytes());
    report.layers.push_back(
        {.name = layer.name, .kind = layer.kind, .bytes_before = before, .bytes_after = layer.bytes()});
    report.bytes_after += layer.bytes() - before;
  }
  const auto made = std::make_shared<QuantizedModel>(model, std::move(layers), release_weights);
  return {.model = Model(model.name(), made), .layers = made->layers(), .report = std::move(report)};
}

Quantized quantize(const Model& model, const Options& options, std::span<const std::vector<at::Tensor>> calibration) {
  check_options(options);
  const at::NoGradGuard no_gradients;
  const bool observes = options.method == Method::static_range;
  const std::vector<CalibratedLayer> found =
      calibrate(model, observes ? calibration : calibration.first(std::min<size_t>(1, calibration.size())),
                {.observer = options.activations, .observes = observes});
  Report report;
  std::vector<QuantizedLayer> layers;
  for (const CalibratedLayer& layer : found) {
    LayerReport one{
        .name = layer.name, .kind = layer.kind, .bytes_before = static_cast<int64_t>(layer.weight.nbytes())};
    one.bytes_after = one.bytes_before;
    if (is_skipped(layer.name, options.skip)) {
      one.kept = "skipped";
    } else if (layer.weight.numel() < options.min_weights) {
      one.kept = c10::str("fewer than ", options.min_weights, " weights");
    } else {
      one.kept = obstacle(layer, options);
    }
    if (one.kept.empty()) {
      layers.push_back(quantized(layer, options, one.weight_sqnr));
      one.bytes_after = layers.back().bytes();
    }
    report.layers.push_back(std::move(one));
  }
  share_input_parameters(layers);
  check_result(report, options);
  compare_layers(model, layers, calibration.front(), report);
  Quantized made = with_layers(model, std::move(layers), options.release_weights);
  report.bytes_before = made.report.bytes_before;
  report.bytes_after = made.report.bytes_after;
  made.report = std::move(report);
  return made;
}

}  // namespace bellows::quant
