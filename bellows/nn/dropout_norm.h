#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace bellows::nn {

struct DropoutNormOptions {
  double p = 0.1;        ///< share of x that is dropped, in [0, 1)
  bool training = true;  ///< false: nothing is dropped
  double eps = 1e-5;     ///< added to the variance, above 0
  bool center = true;    ///< LayerNorm; false: RMSNorm
};

/// norm(residual + dropout(x)) over the last dim: what stands behind each part of a transformer whose norms come last.
/// One pass forward and one backward, and no mask: what is dropped follows from a seed, which forward takes from libtorch's
/// generator, and from the place; backward finds it again. Under recomputation it is the same, as the generator is.
///
/// Params:   weight, bias – as layer_norm's
/// Shapes:   x, residual [*, C]; weight, bias [C] or undefined → [*, C]. Of two dtypes the wider one counts, as with +.
/// Numerics: with nothing dropped the bits of layer_norm(residual + x); otherwise against libtorch's operators with the same mask:
///           float64 to 1e-12; other bits are drawn than by at::dropout (tests/nn/dropout_norm_test.cpp). The same bits for
///           every number of threads.
/// Cost:     saved for backward: the sum, weight and two numbers a row; at::dropout keeps a mask of a byte a value, too.
///           On CUDA with -DBELLOWS_CUDA=ON (untested on a device), with the mask that a CPU draws; other devices take
///           at::dropout, + and libtorch's norms (untested).
/// Throws:   c10::ValueError – shapes, dtypes, devices or options that do not fit; in backward: a gradient of the gradient
/// Ref:      torch.nn.functional.dropout, layer_norm, rms_norm
at::Tensor dropout_add_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight = {},
                            const at::Tensor& bias = {}, const DropoutNormOptions& options = {});

/// The same, and the sum that it normalized, which goes on as the residual where norms come first: {norm, sum}.
std::pair<at::Tensor, at::Tensor> dropout_add_norm_sum(const at::Tensor& x, const at::Tensor& residual,
                                                       const at::Tensor& weight = {}, const at::Tensor& bias = {},
                                                       const DropoutNormOptions& options = {});

}  // namespace bellows::nn
