#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/quant/methods/input_statistics.h"

namespace bellows::quant {

/// Returns the correction that the caller adds to a layer's bias, so that the mean of each output stays the same although
/// the weight is quantized: (weight − quantized) · mean of the inputs.
/// Params:   weight    – floating-point, [out, in]
///           quantized – the dequantized weight, [out, in]
///           inputs    – statistics of the layer's inputs, with `in` features
/// Returns:  fp32, [out]
/// Throws:   c10::ValueError if shapes do not match, a weight is not finite, or there are no inputs
/// Threads:  thread-safe
/// Ref:      arXiv:1906.04721, section 4.2
at::Tensor bias_correction(const at::Tensor& weight, const at::Tensor& quantized, const InputStatistics& inputs);

}  // namespace bellows::quant
