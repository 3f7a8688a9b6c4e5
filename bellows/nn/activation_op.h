#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/kernels/activation.h"

namespace bellows::nn {

/// The kernels of activations as operators of the dispatcher, `bellows::activation` and `bellows::activation_backward_`, so
/// that whatever watches or defers operators sees them. Below autograd; for the CPU and the meta device by our kernels,
/// with -DBELLOWS_CUDA=ON for CUDA too (untested on a device), elsewhere by libtorch's operators (untested). All tensors are
/// contiguous, of one shape and dtype; that is not checked.
/// Params: up – of swiglu, otherwise undefined
at::Tensor activation_op(kernels::Activation activation, const at::Tensor& x, const at::Tensor& up);

/// Writes the gradients, and y once more.
/// Params: dx – may be dy; dup – of swiglu, otherwise undefined; y – undefined: not wanted
void activation_backward_op(kernels::Activation activation, const at::Tensor& dy, const at::Tensor& x,
                            const at::Tensor& up, const at::Tensor& dx, const at::Tensor& dup, const at::Tensor& y);

}  // namespace bellows::nn
