#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace bellows::nn {

struct LayerNormOptions {
  std::vector<int64_t> normalized_shape;  ///< the last dims of the input, over which each row is normalized
  double eps = 1e-5;                      ///< added to the variance, above 0
  bool elementwise_affine = true;         ///< has parameters `weight` (ones) and `bias` (zeros)
  bool bias = true;                       ///< false: only `weight`
};

struct RMSNormOptions {
  std::vector<int64_t> normalized_shape;  ///< the last dims of the input, over which each row is normalized
  std::optional<double> eps{};            ///< added to the mean square, above 0; empty: the default of rms_norm()
  bool elementwise_affine = true;         ///< has the parameter `weight` (ones)
};

/// (x − mean) / sqrt(variance + eps) · weight + bias over the last dims, in one pass forward and one backward.
///
/// Params:   weight, bias – in x's dtype, or in fp32 for bf16 and fp16 input; undefined for none
/// Shapes:   x [*, normalized_shape]; weight, bias [normalized_shape] → x's shape, contiguous
/// Numerics: statistics, sums and gradients of weight and bias are in fp32 for bf16 and fp16 input, and in double for
///           double. float64 agrees with libtorch to 1e-12; bf16 is at least as close to the exact result as libtorch
///           (tests/nn/norm_test.cpp). Bit-identical for any number of threads. Autocast has the same effect as on
///           libtorch's operator: on the CPU, bf16 is normalized directly; CUDA casts to fp32 first.
/// Cost:     saves x, the weight and two numbers per row (8 bytes; 16 for double) for backward. Forward moves x and y
///           once; backward moves x, dy and dx once. Double backward uses libtorch's operators. CUDA is supported with
///           -DBELLOWS_CUDA=ON (untested on a device), except for bf16 and fp16 under autocast. Other devices use
///           libtorch's layer_norm.
/// Throws:   c10::ValueError if shapes, dtypes or devices do not match, or eps is not above 0
/// Ref:      torch.nn.functional.layer_norm
at::Tensor layer_norm(const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight = {},
                      const at::Tensor& bias = {}, double eps = 1e-5);

/// x / sqrt(mean of x² + eps) · weight over the last dims, in one pass forward and one backward.
///
/// Params: weight – as in layer_norm()
///         eps – empty: the machine epsilon of the computation's dtype, 1.2e-7, or 2.2e-16 for double
/// Shapes, numerics, throws: as layer_norm()
/// Cost:   saves x, the weight and one number per row for backward. Moves the same tensors as layer_norm().
/// Ref:    torch.nn.functional.rms_norm; arXiv:1910.07467
at::Tensor rms_norm(const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight = {},
                    std::optional<double> eps = std::nullopt);

}  // namespace bellows::nn
