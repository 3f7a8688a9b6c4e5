#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::nn {

/// The cross-entropy kernels as dispatcher operators, `bellows::softmax_statistics_` and `bellows::softmax_gradient_`.
/// Taps can therefore observe or defer them. The operators are below autograd. On the CPU and the meta device, they run
/// the kernels of Bellows. On CUDA, they do so with -DBELLOWS_CUDA=ON (untested on a device). On other devices, they
/// run libtorch's operators (untested). Arguments are not checked.

/// Adds the classes in [first, first + C) to the statistics of each row.
/// Params: state – [4, N] in the accumulation dtype: max, sum, picked, total, as in kernels::SoftmaxStatistics
///         logits – [N, C] with stride 1 within a row
///         total – whether to compute the sum of the logits
void softmax_statistics_op(const at::Tensor& state, const at::Tensor& logits, const at::Tensor& target, int64_t first,
                           bool total);

/// Computes kernels::SoftmaxGradient of the logits. `gradient` has the logits' strides and can be the same tensor as
/// `logits`.
/// Params: log_sum, scale – [N] in the accumulation dtype
void softmax_gradient_op(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& target,
                         const at::Tensor& log_sum, const at::Tensor& scale, int64_t first, double on, double off);

}  // namespace bellows::nn
