#include "bellows/quant/training/trained_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "bellows/quant/training/range_operators.h"

namespace bellows::quant {

namespace {

constexpr double smallest_step = std::numeric_limits<float>::epsilon();

}  // namespace

Parameters parameters_of_range(const at::Tensor& input_range, LayerKind kind) {
  return range_parameters(input_range, kind == LayerKind::convolution);
}

Parameters input_parameters(const TrainedLayer& layer, LayerKind kind) {
  if (!layer.input_step.defined()) return parameters_of_range(layer.input_range, kind);
  return {.scale = layer.input_step.detach().clamp_min(smallest_step).select(0, 0),
          .zero_point = layer.input_zero_point.select(0, 0).to(at::kInt)};
}

Parameters weight_parameters(const TrainedLayer& layer, const at::Tensor& weight) {
  if (layer.weight_step.defined()) {
    const at::Tensor step = layer.weight_step.detach().clamp_min(smallest_step);
    return {.scale = step, .zero_point = at::zeros_like(step, at::kInt)};
  }
  const Scheme scheme = weight_scheme();
  return row_parameters(weight.detach(), static_cast<double>(scheme.largest() - scheme.smallest()) / 2);
}

LayerInput quantized_input(const std::string& name, const TrainedLayer& layer, LayerKind kind) {
  Parameters made = input_parameters(layer, kind);
  TORCH_CHECK_VALUE(at::isfinite(made.scale).item<bool>(), "quantization: the trained range of the inputs of \"", name,
                    "\" is NaN or infinite. Train the model again, or calibrate it with data.");
  const bool is_signed = kind == LayerKind::convolution && made.zero_point.item<int>() != 0;
  if (is_signed) made.zero_point = made.zero_point - 128;
  return {.parameters = std::move(made), .is_signed = is_signed};
}

}  // namespace bellows::quant
