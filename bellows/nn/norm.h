#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace bellows::nn {

struct LayerNormOptions {
  std::vector<int64_t> normalized_shape;  ///< sizes of the last dims of the input; their values are normalized together
  double eps = 1e-5;                      ///< added to the variance, above 0
  bool elementwise_affine = true;         ///< the module has parameters `weight` (ones) and `bias` (zeros)
  bool bias = true;                       ///< false: the module has no `bias`
};

struct RMSNormOptions {
  std::vector<int64_t> normalized_shape;  ///< sizes of the last dims of the input; their values are normalized together
  std::optional<double> eps{};            ///< added to the mean square, above 0; empty: the default of rms_norm()
  bool elementwise_affine = true;         ///< the module has the parameter `weight` (ones)
};

/// Normalizes x over its last dims: (x − mean) / sqrt(variance + eps) · weight + bias. Forward and backward each make
/// one pass over the data.
///
/// Params:   weight, bias – in x's dtype, or in fp32 for bf16 and fp16 input; undefined: not applied
/// Shapes:   x [*, normalized_shape]; weight, bias [normalized_shape] → x's shape, contiguous
/// Numerics: for bf16 and fp16 input, statistics, sums and gradients of weight and bias are in fp32; for double input,
///           they are in double. Results in float64 agree with libtorch to 1e-12. Results in bf16 are at least as close
///           to the exact result as libtorch's (tests/nn/norm_test.cpp). All results are bit-identical for any number
///           of threads. Autocast has the same effect as on libtorch's operator: on the CPU, bf16 is normalized
///           directly, and on CUDA, the input is first cast to fp32.
/// Cost:     saves x, the weight and two numbers per row (8 bytes; 16 for double) for backward. Forward reads x and
///           writes y once; backward reads x and dy and writes dx once. Double backward uses libtorch's operators. CUDA
///           kernels require a build with -DBELLOWS_CUDA=ON (untested on a device). Other devices, and bf16 and fp16
///           under autocast on CUDA, use libtorch's layer_norm.
/// Throws:   c10::ValueError if shapes, dtypes or devices do not match, or eps is not above 0
/// Ref:      torch.nn.functional.layer_norm
at::Tensor layer_norm(const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight = {},
                      const at::Tensor& bias = {}, double eps = 1e-5);

/// Computes x / sqrt(mean of x² + eps) · weight over the last dims. Forward and backward each make one pass over the
/// data.
///
/// Params: weight – see layer_norm()
///         eps – empty: the machine epsilon of the dtype of the computation, which is 1.2e-7 for fp32 and 2.2e-16 for
///         double
/// Shapes, numerics, throws: see layer_norm()
/// Cost:   saves x, the weight and one number per row for backward. It reads and writes the same tensors as
///         layer_norm().
/// Ref:    torch.nn.functional.rms_norm; arXiv:1910.07467
at::Tensor rms_norm(const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight = {},
                    std::optional<double> eps = std::nullopt);

}  // namespace bellows::nn
