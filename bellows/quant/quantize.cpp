#include "bellows/quant/quantize.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/weight_bytes.h"
#include "bellows/quant/calibration.h"
#include "bellows/quant/comparison.h"
#include "bellows/quant/methods/auto_round.h"
#include "bellows/quant/methods/awq.h"
#include "bellows/quant/methods/bias_correction.h"
#include "bellows/quant/methods/gptq.h"
#include "bellows/quant/methods/hqq.h"
#include "bellows/quant/methods/input_statistics.h"
#include "bellows/quant/methods/smooth_quant.h"
#include "bellows/quant/quantized_model.h"

namespace bellows::quant {

namespace {

constexpr std::array<const char*, 5> rounding_names = {"nearest", "hqq", "gptq", "awq", "auto_round"};

void check_options(const Options& options) {
  options.weights.check();
  const Scheme& scheme = options.weights;
  const bool integers = options.method != Method::weight_only;
  TORCH_CHECK_VALUE(!integers || scheme.is_int8_per_output(), "quantization: the method ", name_of(options.method),
                    " needs weights in symmetric int8 with one scale per output channel, got ", scheme.to_text(),
                    ". Use the method weight_only for other weights.");
  TORCH_CHECK_VALUE(scheme.bits > 1 || !scheme.is_signed || !scheme.symmetric,
                    "quantization: symmetric signed weights need at least 2 bits. With 1 bit, all of them would be 0.");
  TORCH_CHECK_VALUE(options.rounding != Rounding::awq || options.method == Method::weight_only,
                    "quantization: rounding awq needs the method weight_only, got ", name_of(options.method), ".");
  TORCH_CHECK_VALUE(options.smooth >= 0 && options.smooth <= 1, "quantization: expected `smooth` from 0 to 1, got ",
                    options.smooth, ".");
  TORCH_CHECK_VALUE(options.smooth == 0 || integers,
                    "quantization: `smooth` needs the method static or dynamic, got weight_only.");
  TORCH_CHECK_VALUE(
      options.trained.empty() || (options.method == Method::static_range && options.smooth == 0 &&
                                  options.rounding == Rounding::nearest && !options.correct_bias),
      "quantization: `trained` needs the method static, rounding nearest, and neither `smooth` nor "
      "`correct_bias`, because the model was trained without them. Change these options, or clear `trained`.");
  TORCH_CHECK_VALUE(options.min_weights >= 0, "quantization: expected a number of weights of at least 0, got ",
                    options.min_weights, ".");
}

bool is_skipped(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches_name(pattern, name); });
}

std::vector<std::string> names_of(const std::vector<CalibratedLayer>& layers) {
  std::vector<std::string> names;
  names.reserve(layers.size());
  for (const CalibratedLayer& layer : layers) names.push_back(layer.name);
  return names;
}

/// Why a layer stays in floating point although the user wants to quantize it, or empty.
std::string obstacle(const CalibratedLayer& layer, const Options& options) {
  if (!layer.kept.empty()) return layer.kept;
  const bool embedding = layer.kind == LayerKind::embedding;
  if (!embedding && !options.trained.empty() && !options.trained.contains(layer.name))
    return "it was not trained with quantization";
  if (layer.weight.scalar_type() == at::kDouble) return "the weight is float64";
  if (options.method == Method::dynamic && layer.kind == LayerKind::convolution)
    return "dynamic quantization supports only linears and embeddings";
  const Scheme& scheme = options.weights;
  if (layer.reads_rows && !embedding && !has_row_scales(scheme))
    return "it shares its weight with an embedding, which needs scales for rows";
  if (scheme.granularity != Granularity::group) return "";
  if (layer.kind == LayerKind::convolution) return "groups are supported only for linears and embeddings";
  const int64_t inputs = layer.weight.size(-1);
  return inputs % scheme.group_size == 0 ? ""
                                         : c10::str("groups of ", scheme.group_size, " do not divide its ", inputs,
                                                    embedding ? " columns" : " inputs");
}

/// Throws: c10::ValueError with `strict`, if there is an obstacle
std::string reason_to_keep(const CalibratedLayer& layer, const Options& options) {
  if (is_skipped(layer.name, options.skip)) return "skipped";
  if (layer.weight.numel() < options.min_weights) return c10::str("fewer than ", options.min_weights, " weights");
  std::string reason = obstacle(layer, options);
  TORCH_CHECK_VALUE(!options.strict || reason.empty(), "quantization: the layer \"", layer.name,
                    "\" cannot be quantized: ", reason,
                    ". Add it to `skip`, or set `strict` to false to keep such layers in floating point.");
  return reason;
}

/// A batch norm behind a convolution: factor of each output, and the bias of the folded convolution.
std::pair<at::Tensor, at::Tensor> norm_of(const CalibratedLayer& layer) {
  const CalibratedLayer::Norm& norm = *layer.norm;
  at::Tensor factor = (norm.variance.to(at::kFloat) + norm.eps).rsqrt();
  if (norm.weight.defined()) factor = factor * norm.weight;
  at::Tensor bias = layer.bias.defined() ? layer.bias - norm.mean : -norm.mean;
  bias = bias * factor;
  if (norm.bias.defined()) bias = bias + norm.bias;
  return {factor, bias.to(at::kFloat)};
}

/// The weight and bias of a convolution and the batch norm behind it, as one convolution.
std::pair<at::Tensor, at::Tensor> folded(const CalibratedLayer& layer) {
  auto [factor, bias] = norm_of(layer);
  std::vector<int64_t> channel(layer.weight.dim(), 1);
  channel[0] = -1;
  return {layer.weight * factor.view(channel), std::move(bias)};
}

/// The layer with the integers and the input of training. A norm multiplies the scales of the outputs, so the integers stay
/// the same. Norms with a factor that is not positive are not folded.
QuantizedLayer trained_layer(const CalibratedLayer& layer, const TrainedLayer& trained, const Options& options,
                             double& weight_sqnr) {
  const at::Tensor weight = layer.weight.detach().to(at::kFloat);
  const LayerInput input = quantized_input(layer.name, trained, layer.kind);
  QuantizedLayer made{.name = layer.name,
                      .parameter = layer.parameter,
                      .kind = layer.kind,
                      .weight = quantize(weight, weight_parameters(trained, weight), options.weights),
                      .input = input.parameters,
                      .input_is_signed = input.is_signed,
                      .reads_rows = layer.reads_rows};
  weight_sqnr = sqnr(weight, made.weight.dequantize());
  if (!options.fold_norms || !layer.norm || layer.kind != LayerKind::convolution) return made;
  const auto [factor, bias] = norm_of(layer);
  if (!(factor > 0).all().item<bool>()) return made;
  made.weight.parameters.scale = made.weight.parameters.scale * factor;
  made.bias = bias;
  made.norm = layer.norm->name;
  return made;
}

QuantizedTensor rounded(const at::Tensor& weight, const InputStatistics* inputs, const Options& options,
                        at::Tensor& divisors) {
  switch (options.rounding) {
    case Rounding::hqq:
      return hqq(weight, options.weights);
    case Rounding::gptq:
      return gptq(weight, *inputs, options.weights);
    case Rounding::auto_round:
      return auto_round(weight, *inputs, options.weights);
    case Rounding::awq: {
      AwqWeight made = awq(weight, *inputs, options.weights);
      divisors = made.scales;
      return std::move(made.weight);
    }
    case Rounding::nearest:
      break;
  }
  return quantize(weight, options.weights);
}

/// The parameters for inputs that were divided: a symmetric range for the largest magnitude.
Parameters smoothed_input(const InputStatistics& inputs, const at::Tensor& divisors) {
  const at::Tensor largest = (inputs.max_abs() / divisors).max();
  return choose_parameters(-largest, largest, Scheme{});
}

/// Quantizes the weight of a linear, whose inputs are known if an option needs them.
void quantize_linear(QuantizedLayer& made, at::Tensor weight, const CalibratedLayer& layer,
                     const InputStatistics* inputs, const Options& options) {
  std::optional<InputStatistics> divided;
  // The methods choose a weight for the linear's inputs. Rows that are read must be close to the original ones.
  const bool only_linear = !layer.reads_rows;
  if (options.smooth > 0 && only_linear) {
    made.divisors = smooth_quant_scales(weight, *inputs, options.smooth);
    if (options.method == Method::static_range) made.input = smoothed_input(*inputs, made.divisors);
    weight = weight * made.divisors;
    divided = inputs->divided_by(made.divisors);
    inputs = &*divided;
  }
  made.weight = only_linear ? rounded(weight, inputs, options, made.divisors) : quantize(weight, options.weights);
  if (!options.correct_bias || !layer.has_one_bias) return;
  const at::Tensor now = made.divisors.defined() && options.smooth == 0 ? made.weight.dequantize() / made.divisors
                                                                        : made.weight.dequantize();
  const at::Tensor correction = bias_correction(weight, now, *inputs);
  made.bias = layer.bias.defined() ? layer.bias.to(at::kFloat) + correction : correction;
}

QuantizedLayer quantized_embedding(const CalibratedLayer& layer, const Options& options, double& weight_sqnr) {
  const at::Tensor weight = layer.weight.detach().to(at::kFloat);
  QuantizedLayer made{.name = layer.name,
                      .parameter = layer.parameter,
                      .kind = layer.kind,
                      .method = Method::weight_only,
                      .weight = quantize(weight, embedding_scheme(options.weights)),
                      .reads_rows = true};
  weight_sqnr = sqnr(weight, made.weight.dequantize());
  return made;
}

QuantizedLayer quantized(const CalibratedLayer& layer, const InputStatistics* inputs, const Options& options,
                         double& weight_sqnr) {
  QuantizedLayer made{.name = layer.name,
                      .parameter = layer.parameter,
                      .kind = layer.kind,
                      .method = options.method,
                      .input = layer.input,
                      .input_is_signed = layer.input_is_signed,
                      .quantizes_sums = options.quantize_sums && options.method == Method::static_range &&
                                        layer.kind == LayerKind::convolution,
                      .reads_rows = layer.reads_rows};
  at::Tensor weight = layer.weight.detach();
  if (options.method == Method::dynamic) made.input = {.scale = at::ones({}), .zero_point = at::zeros({}, at::kInt)};
  if (options.method == Method::weight_only) made.input = {};
  if (options.fold_norms && layer.norm && layer.kind == LayerKind::convolution) {
    std::tie(weight, made.bias) = folded(layer);
    made.norm = layer.norm->name;
  }
  weight = weight.to(at::kFloat);
  if (layer.kind == LayerKind::linear) {
    quantize_linear(made, weight, layer, inputs, options);
  } else {
    made.weight = quantize(weight, options.weights);
  }
  const at::Tensor now = made.weight.dequantize();
  weight_sqnr = sqnr(weight, made.divisors.defined() ? now / made.divisors : now);
  return made;
}

bool needs_statistics(const Options& options) {
  return options.smooth > 0 || options.correct_bias ||
         (options.rounding != Rounding::nearest && options.rounding != Rounding::hqq);
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

/// The sizes of `sizes`, and everything else of `found`.
Report merged(Report found, const Report& sizes) {
  std::unordered_map<std::string, int64_t> after;
  for (const LayerReport& layer : sizes.layers) after.emplace(layer.name, layer.bytes_after);
  for (LayerReport& layer : found.layers) {
    const auto known = after.find(layer.name);
    layer.bytes_after = known == after.end() ? layer.bytes_before : known->second;
  }
  found.bytes_before = sizes.bytes_before;
  found.bytes_after = sizes.bytes_after;
  return found;
}

/// Gives the linears of each attention the scales of their results, if all of them are quantized.
void quantize_attentions(const std::vector<CalibratedLayer>& found, std::vector<QuantizedLayer>& layers,
                         Report& report) {
  std::unordered_map<std::string, QuantizedLayer*> quantized;
  for (QuantizedLayer& layer : layers) quantized.emplace(layer.name, &layer);
  std::unordered_map<std::string, at::Tensor> scales;
  for (const CalibratedLayer& layer : found) scales.emplace(layer.name, layer.result_scale);
  for (const CalibratedLayer& layer : found) {
    if (!layer.attention) continue;
    AttentionReport one{.query = layer.name, .key = layer.attention->key, .value = layer.attention->value};
    const std::array<const std::string*, 3> names{&one.query, &one.key, &one.value};
    for (const std::string* name : names) {
      if (!quantized.contains(*name)) one.kept = "the linear \"" + *name + "\" is not quantized";
    }
    for (const std::string* name : names) {
      if (one.kept.empty()) quantized.at(*name)->result_scale = scales.at(*name);
    }
    report.attentions.push_back(std::move(one));
  }
}

void check_result(const Report& report) {
  std::string reasons;
  for (const LayerReport& layer : report.layers) reasons += "\n  " + layer.name + ": " + layer.kept;
  TORCH_CHECK_VALUE(report.quantized() > 0, "quantization: no layer of the model can be quantized.",
                    report.layers.empty() ? " It has no convolutions, linears or embeddings whose weight is a "
                                            "floating-point parameter, or it is quantized already."
                                          : reasons);
}

}  // namespace

Quantized with_layers(const Model& model, std::vector<QuantizedLayer> layers, bool release_weights) {
  Report report{.bytes_before = weight_bytes(model)};
  std::unordered_map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : model.named_parameters()) weights.emplace(name, tensor);
  const auto made = std::make_shared<QuantizedModel>(model, std::move(layers), release_weights);
  for (const QuantizedLayer& layer : *made->layers()) {
    const auto before = static_cast<int64_t>(weights.at(layer.parameter).nbytes());
    report.layers.push_back(
        {.name = layer.name, .kind = layer.kind, .bytes_before = before, .bytes_after = layer.bytes()});
  }
  const Model quantized(model.name(), made);
  report.bytes_after = weight_bytes(quantized);
  return {.model = quantized, .original = model, .layers = made->layers(), .report = std::move(report)};
}

const char* name_of(Rounding rounding) {
  return rounding_names.at(static_cast<size_t>(rounding));
}

Rounding rounding_of(const std::string& name) {
  const auto found = std::find(rounding_names.begin(), rounding_names.end(), name);
  TORCH_CHECK_VALUE(found != rounding_names.end(), "quantization: there is no rounding \"", name,
                    "\". Expected nearest, hqq, gptq, awq or auto_round.");
  return static_cast<Rounding>(found - rounding_names.begin());
}

Quantized quantize(const Model& model, const Options& options, std::span<const std::vector<at::Tensor>> calibration) {
  check_options(options);
  const at::NoGradGuard no_gradients;
  const bool observes = options.method == Method::static_range && options.trained.empty();
  const bool learns = needs_statistics(options);
  std::unordered_map<std::string, InputStatistics> statistics;
  CalibrationOptions how{.observer = options.activations,
                         .observes = observes,
                         .observes_attention = observes && options.quantize_attention,
                         .finds_embeddings = options.quantize_embeddings};
  if (learns) {
    how.sees_input = [&](const std::string& layer, LayerKind kind, const at::Tensor& x) {
      if (kind == LayerKind::linear) statistics.try_emplace(layer, x.size(-1)).first->second.add(x);
    };
  }
  const size_t batches = observes || learns ? calibration.size() : std::min<size_t>(1, calibration.size());
  const std::vector<CalibratedLayer> found = calibrate(model, calibration.first(batches), how);
  check_patterns(options.skip, names_of(found));
  Report report;
  std::vector<QuantizedLayer> layers;
  for (const CalibratedLayer& layer : found) {
    LayerReport one{.name = layer.name,
                    .kind = layer.kind,
                    .kept = reason_to_keep(layer, options),
                    .bytes_before = static_cast<int64_t>(layer.weight.nbytes())};
    const auto inputs = statistics.find(layer.name);
    if (one.kept.empty()) {
      const InputStatistics* const own = inputs == statistics.end() ? nullptr : &inputs->second;
      if (layer.kind == LayerKind::embedding)
        layers.push_back(quantized_embedding(layer, options, one.weight_sqnr));
      else if (options.trained.empty())
        layers.push_back(quantized(layer, own, options, one.weight_sqnr));
      else
        layers.push_back(trained_layer(layer, options.trained.at(layer.name), options, one.weight_sqnr));
    }
    report.layers.push_back(std::move(one));
  }
  share_input_parameters(layers);
  check_result(report);
  quantize_attentions(found, layers, report);
  compare_layers(model, layers, calibration.front(), report);
  Quantized made = with_layers(model, std::move(layers), options.release_weights);
  made.report = merged(std::move(report), made.report);
  return made;
}

}  // namespace bellows::quant
