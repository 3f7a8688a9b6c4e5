#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::nn {

/// The kernels of cross-entropy as operators of the dispatcher, `bellows::softmax_statistics_` and
/// `bellows::softmax_gradient_`, so that whatever watches or defers operators sees them. Below autograd; for the CPU and the
/// meta device by our kernels, with -DBELLOWS_CUDA=ON for CUDA too (untested on a device), elsewhere by libtorch's operators
/// (untested). Arguments are not checked here.

/// Adds the classes [first, first + C) to what is known of the rows.
/// Params:   state – [4, N] of the accumulation type: max, sum, picked, total; as kernels::SoftmaxStatistics says
///           logits – [N, C], rows with stride 1
///           total – is the sum of the logits wanted?
void softmax_statistics_op(const at::Tensor& state, const at::Tensor& logits, const at::Tensor& target, int64_t first,
                           bool total);

/// kernels::SoftmaxGradient of the logits, written to `gradient`, which has their strides and may be them.
/// Params:   log_sum, scale – [N] of the accumulation type
void softmax_gradient_op(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& target,
                         const at::Tensor& log_sum, const at::Tensor& scale, int64_t first, double on, double off);

}  // namespace bellows::nn
