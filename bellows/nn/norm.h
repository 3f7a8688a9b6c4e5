#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace bellows::nn {

struct LayerNormOptions {
  std::vector<int64_t> normalized_shape;  ///< the last dims of the input, over which each row is normalized
  double eps = 1e-5;                      ///< added to the variance, above 0
  bool elementwise_affine = true;         ///< with parameters `weight` (ones) and `bias` (zeros)
  bool bias = true;                       ///< false: of these, `weight` only
};

struct RMSNormOptions {
  std::vector<int64_t> normalized_shape;  ///< the last dims of the input, over which each row is normalized
  std::optional<double> eps{};            ///< added to the mean square, above 0; none: of rms_norm()
  bool elementwise_affine = true;         ///< with the parameter `weight` (ones)
};

/// (x − mean) / sqrt(variance + eps) · weight + bias over the last dims, in one pass forward and one backward.
///
/// Params:   weight, bias – of x's dtype; for bf16 and fp16 input fp32 ones are fine, too; undefined: none
/// Shapes:   x [*, normalized_shape]; weight, bias [normalized_shape] → as x, contiguous
/// Numerics: statistics, sums and gradients of weight and bias are kept in fp32 for bf16 and fp16 input, in double for
///           double. Against libtorch: float64 to 1e-12, bf16 no further from the exact result (tests/nn/norm_test.cpp).
///           The same bits for every number of threads. Under autocast as libtorch on the same device: a CPU
///           normalizes bf16 as it comes, CUDA casts to fp32 first.
/// Cost:     saved for backward: x, weight and two numbers a row (8 bytes; 16 for double). Memory moved: x and y once
///           forward; x, dy and dx once backward. A gradient of the gradient is composed of libtorch's operators.
///           On CUDA with -DBELLOWS_CUDA=ON (untested on a device), but for bf16 and fp16 under autocast; tensors of other
///           devices go to libtorch's own layer_norm.
/// Throws:   c10::ValueError – shapes, dtypes or devices that do not match; an eps that is not above 0
/// Ref:      torch.nn.functional.layer_norm
at::Tensor layer_norm(const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight = {},
                      const at::Tensor& bias = {}, double eps = 1e-5);

/// x / sqrt(mean of x² + eps) · weight over the last dims, in one pass forward and one backward.
///
/// Params:   weight – as layer_norm's
///           eps – none: the machine epsilon of what it is computed in, 1.2e-7, for double 2.2e-16
/// Shapes, numerics, throws: as layer_norm's
/// Cost:     saved for backward: x, weight and one number a row. Moves what layer_norm moves.
/// Ref:      torch.nn.functional.rms_norm; arXiv:1910.07467
at::Tensor rms_norm(const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight = {},
                    std::optional<double> eps = std::nullopt);

}  // namespace bellows::nn
