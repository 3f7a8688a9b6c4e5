#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::nn {

/// Cross-entropy kernels as dispatcher operators, `bellows::softmax_statistics_` and `bellows::softmax_gradient_`, so
/// that taps can observe or defer them. They are below autograd. The CPU and the meta device use the kernels of
/// Bellows, and so does CUDA with -DBELLOWS_CUDA=ON (untested on a device). Other devices use libtorch's operators
/// (untested). Arguments are not checked.

/// Adds the classes [first, first + C) to the statistics of the rows.
/// Params: state – [4, N] of the accumulation type: max, sum, picked, total, as in kernels::SoftmaxStatistics
///         logits – [N, C]; the stride within a row is 1
///         total – whether to compute the sum of the logits
void softmax_statistics_op(const at::Tensor& state, const at::Tensor& logits, const at::Tensor& target, int64_t first,
                           bool total);

/// Computes kernels::SoftmaxGradient of the logits. `gradient` has the logits' strides and may be the logits.
/// Params: log_sum, scale – [N] of the accumulation type
void softmax_gradient_op(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& target,
                         const at::Tensor& log_sum, const at::Tensor& scale, int64_t first, double on, double off);

}  // namespace bellows::nn
