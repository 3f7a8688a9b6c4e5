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

/// Computes norm(residual + dropout(x)) over the last dim, as in post-norm transformers. Forward and backward each make
/// one pass over the data, and no mask is stored. The mask is a function of the position and of a seed that forward
/// draws from libtorch's generator. Backward recomputes the mask. Under activation checkpointing, the second run gets
/// the same mask, because the generator's state is restored.
///
/// Params:   weight, bias – see layer_norm()
/// Shapes:   x, residual [*, C]; weight, bias [C] or undefined → [*, C]. Different dtypes are promoted as in at::add.
/// Numerics: without dropout, bit-identical to layer_norm(residual + x). With dropout, results agree with libtorch's
///           operators to 1e-12 in float64 if the mask is the same. However, at::dropout draws a different mask
///           (tests/nn/dropout_norm_test.cpp). Results are bit-identical for any number of threads.
/// Cost:     saves the sum, the weight and two numbers per row for backward. In contrast, at::dropout would also save a
///           mask of one byte per value. With -DBELLOWS_CUDA=ON, CUDA uses the same mask as the CPU (untested on a
///           device). Other devices use at::dropout, at::add and libtorch's norms (untested).
/// Throws:   c10::ValueError if shapes, dtypes, devices or options are invalid. Backward throws if create_graph is set
/// Ref:      torch.nn.functional.dropout, layer_norm, rms_norm
at::Tensor dropout_add_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight = {},
                            const at::Tensor& bias = {}, const DropoutNormOptions& options = {});

/// Like dropout_add_norm(), but returns {norm, sum}. In pre-norm transformers, `sum` is the residual of the next layer.
std::pair<at::Tensor, at::Tensor> dropout_add_norm_sum(const at::Tensor& x, const at::Tensor& residual,
                                                       const at::Tensor& weight = {}, const at::Tensor& bias = {},
                                                       const DropoutNormOptions& options = {});

}  // namespace bellows::nn
