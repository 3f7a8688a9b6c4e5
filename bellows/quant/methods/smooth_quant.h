#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/quant/methods/input_statistics.h"

namespace bellows::quant {

/// Returns scales that move outliers from a layer's inputs to its weight, so that both can be quantized to 8 bits:
/// scales[j] = max|x_j|^alpha / max|w_j|^(1 − alpha). The caller divides input j by scales[j], and multiplies column j of
/// the weight by it.
///
/// A channel whose inputs or weights are always 0 gets the scale 1.
/// Params:   weight – floating-point, [out, in]. For layers that share one input, concatenate the weights along dim 0
///           inputs – statistics of the layer's inputs, with `in` features
///           alpha  – in [0, 1]; 1 moves outliers to the weight completely
/// Returns:  fp32, [in], at least 1e-5
/// Throws:   c10::ValueError if shapes do not match, the weight is not finite, alpha is out of range, or there are no
///           inputs
/// Threads:  thread-safe
/// Ref:      arXiv:2211.10438; smooth_ln_fcs() of mit-han-lab/smoothquant
at::Tensor smooth_quant_scales(const at::Tensor& weight, const InputStatistics& inputs, double alpha = 0.5);

}  // namespace bellows::quant
