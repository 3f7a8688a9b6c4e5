#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/kernels/activation.h"

namespace bellows::nn {

/// Activation kernels as dispatcher operators, `bellows::activation` and `bellows::activation_backward_`, so that taps
/// can observe or defer them. They are below autograd. The CPU and the meta device use the kernels of Bellows, and so
/// does CUDA with -DBELLOWS_CUDA=ON (untested on a device). Other devices use libtorch's operators (untested). All
/// tensors must be contiguous and have the same shape and dtype; this is not checked.
/// Params: up – for SwiGLU; otherwise undefined
at::Tensor activation_op(kernels::Activation activation, const at::Tensor& x, const at::Tensor& up);

/// Writes the gradients, and y if it is defined.
/// Params: dx – may be dy
///         dup – for SwiGLU; otherwise undefined
///         y – undefined if not needed
void activation_backward_op(kernels::Activation activation, const at::Tensor& dy, const at::Tensor& x,
                            const at::Tensor& up, const at::Tensor& dx, const at::Tensor& dup, const at::Tensor& y);

}  // namespace bellows::nn
