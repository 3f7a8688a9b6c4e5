#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::quant {

/// Returns scales that give the channels between two layers equal ranges in both weights. After scaling, the largest
/// magnitudes of row i of the first weight and of channel i of the second weight are equal. Per-tensor quantization then
/// loses less.
///
/// The two layers together compute the same function if only ReLU, or another function with f(s · x) = s · f(x) for s > 0,
/// lies between them. The caller divides row i of the first weight and element i of its bias by scales[i], and multiplies
/// channel i of the second weight by it. A channel that is 0 in one of the weights gets the scale 1.
/// Params:   first  – floating-point, [channels, in]
///           second – floating-point, [out, channels · k]. For a convolution, k is the number of kernel elements, and the
///                    columns of a channel are neighbors
/// Returns:  fp32, [channels]
/// Throws:   c10::ValueError if the shapes do not match, or if a weight is not finite
/// Threads:  thread-safe
/// Ref:      arXiv:1906.04721, section 4.1
at::Tensor equalization_scales(const at::Tensor& first, const at::Tensor& second);

}  // namespace bellows::quant
