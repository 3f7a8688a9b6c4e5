#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace bellows::nn {

struct DropoutNormOptions {
  double p = 0.1;        ///< probability of dropping a value of x, in [0, 1)
  bool training = true;  ///< false: no dropout
  double eps = 1e-5;     ///< added to the variance, above 0
  bool center = true;    ///< true: LayerNorm; false: RMSNorm
};

/// norm(residual + dropout(x)) over the last dim, as in post-norm transformers. Makes one pass forward and one
/// backward, and stores no mask. The mask is a function of position and of a seed that forward draws from libtorch's
/// generator; backward computes it again. Under activation checkpointing the mask is the same, because the generator's
/// state is restored.
///
/// Params:   weight, bias – as in layer_norm()
/// Shapes:   x, residual [*, C]; weight, bias [C] or undefined → [*, C]. Two dtypes are promoted as by +.
/// Numerics: without dropout, bit-identical to layer_norm(residual + x). With dropout, agrees with libtorch's operators
///           with the same mask to 1e-12 in float64. The mask differs from that of at::dropout
///           (tests/nn/dropout_norm_test.cpp). Bit-identical for any number of threads.
/// Cost:     saves the sum, the weight and two numbers per row for backward; at::dropout also saves a mask of one byte
///           per value. CUDA with -DBELLOWS_CUDA=ON uses the same mask as the CPU (untested on a device). Other devices
///           use at::dropout, + and libtorch's norms (untested).
/// Throws:   c10::ValueError if shapes, dtypes, devices or options are invalid; in backward, if create_graph is set
/// Ref:      torch.nn.functional.dropout, layer_norm, rms_norm
at::Tensor dropout_add_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight = {},
                            const at::Tensor& bias = {}, const DropoutNormOptions& options = {});

/// As dropout_add_norm(), but returns {norm, sum}. `sum` is the residual of the next layer in pre-norm transformers.
std::pair<at::Tensor, at::Tensor> dropout_add_norm_sum(const at::Tensor& x, const at::Tensor& residual,
                                                       const at::Tensor& weight = {}, const at::Tensor& bias = {},
                                                       const DropoutNormOptions& options = {});

}  // namespace bellows::nn
