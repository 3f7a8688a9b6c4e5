#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/kernels/activation.h"

namespace bellows::nn {

/// The activation kernels as dispatcher operators, `bellows::activation` and `bellows::activation_backward_`. Taps can
/// therefore observe or defer them. The operators are below autograd. On the CPU and the meta device, they run the
/// kernels of Bellows. On CUDA, they do so with -DBELLOWS_CUDA=ON (untested on a device). On other devices, they run
/// libtorch's operators (untested). All tensors must be contiguous and have the same shape and dtype. This is not
/// checked.
/// Params: up – only for SwiGLU; otherwise undefined
at::Tensor activation_op(kernels::Activation activation, const at::Tensor& x, const at::Tensor& up);

/// Writes the gradients to dx and dup. If y is defined, also writes the activation to y.
/// Params: dx – can be the same tensor as dy
///         dup – only for SwiGLU; otherwise undefined
///         y – undefined if the activation is not needed
void activation_backward_op(kernels::Activation activation, const at::Tensor& dy, const at::Tensor& x,
                            const at::Tensor& up, const at::Tensor& dx, const at::Tensor& dup, const at::Tensor& y);

}  // namespace bellows::nn
