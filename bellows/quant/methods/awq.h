#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/quant/affine.h"
#include "bellows/quant/methods/input_statistics.h"

/// Activation-aware weight quantization (AWQ): input channels with large activations get finer steps, and the ranges of
/// the weights are clipped.
///
/// For all functions:
/// Params:   weight – floating-point, [out, in]. For layers that share one input, concatenate the weights along dim 0
///           inputs – statistics of the layer's inputs, with `in` features
///           scheme – granularity tensor, channel (axis 0) or group. awq_clip() does not support granularity tensor
/// Numerics: fp32, deterministic. Errors of outputs are computed from the second moment of the inputs, which is equal to
///           the error over all inputs
/// Threads:  thread-safe
/// Throws:   c10::ValueError if shapes do not match, the weight is not finite, an option is out of range, or there are no
///           inputs
/// Ref:      arXiv:2306.00978; auto_scale.py and auto_clip.py of mit-han-lab/llm-awq
namespace bellows::quant {

struct AwqOptions {
  int grid = 20;            ///< number of exponents, and of steps from the whole range to 0
  double max_shrink = 0.5;  ///< share by which a range may shrink, in [0, 1); 0: no clipping
};

/// Returns the scales of the input channels, fp32, [in]: the mean magnitudes of the inputs to the power of i / grid,
/// divided by the geometric mean of the largest and the smallest. The exponent with the smallest error wins.
///
/// The caller multiplies column j of the weight by scales[j], and divides input j by it.
/// Cost: grid · out · in² operations
at::Tensor awq_scales(const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme,
                      const AwqOptions& options = {});

/// Returns the weight, clipped so that each scale has the smallest error of its part of the output.
/// Cost: grid · max_shrink · out · in · group_size operations
at::Tensor awq_clip(const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme,
                    const AwqOptions& options = {});

struct AwqWeight {
  QuantizedTensor weight{};  ///< of the scaled and clipped weight
  at::Tensor scales{};       ///< fp32, [in]; the layer's input must be divided by them
};

/// Chooses scales, clips the scaled weight and quantizes it.
AwqWeight awq(const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme,
              const AwqOptions& options = {});

}  // namespace bellows::quant
