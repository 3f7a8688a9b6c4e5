#pragma once

#include <span>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/quant/quantize.h"

namespace bellows::quant {

/// Runs the original model on one batch and sets LayerReport::result_sqnr of each quantized layer. Each layer gets the
/// original input, so that errors do not add up.
void compare_layers(const Model& model, std::span<const QuantizedLayer> layers, const std::vector<at::Tensor>& batch,
                    Report& report);

}  // namespace bellows::quant
