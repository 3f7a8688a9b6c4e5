#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "bellows/quant/affine.h"
#include "bellows/quant/layer.h"

namespace bellows::quant {

/// The result of quantization-aware training for one layer. The weight itself belongs to the model.
struct TrainedLayer {
  at::Tensor input_range{};       ///< fp32 [2]: the lower and the upper bound of the inputs
  at::Tensor input_step{};        ///< learned step: fp32 [1]; undefined: from the range
  at::Tensor input_zero_point{};  ///< with a learned step: fp32 [1], not learned
  at::Tensor weight_step{};       ///< learned step: fp32 [outputs]; undefined: from the weight
};

/// Trained layers by name, as in QuantizedLayer::name.
using TrainedLayers = std::map<std::string, TrainedLayer>;

// Training and quantize() use the same functions, so both compute with the same integers. No value is read on the host.

/// Returns the parameters of the layer's inputs as uint8. Inputs of convolutions that are negative have the zero point
/// 128, which is symmetric int8 with another offset, because convolutions with any other zero point are slower.
Parameters input_parameters(const TrainedLayer& layer, LayerKind kind);
/// Returns the parameters that belong to a range of inputs, without a learned step.
Parameters parameters_of_range(const at::Tensor& input_range, LayerKind kind);
/// Returns the parameters of the layer's weight: symmetric int8 with one scale per output.
Parameters weight_parameters(const TrainedLayer& layer, const at::Tensor& weight);

/// Parameters for QuantizedLayer::input.
struct LayerInput {
  Parameters parameters{};
  bool is_signed = false;
};
/// Returns the layer's input for a quantized model. Reads the values on the host.
/// Throws: c10::ValueError if the range is NaN or infinite
LayerInput quantized_input(const std::string& name, const TrainedLayer& layer, LayerKind kind);

}  // namespace bellows::quant
