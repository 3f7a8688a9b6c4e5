#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace bellows::nn {

/// The kernels as dispatcher operators, `bellows::norm` and `bellows::norm_backward`. Taps can therefore observe or
/// defer them. The operators are below autograd. They support the CPU, the meta device and, with -DBELLOWS_CUDA=ON,
/// CUDA (untested on a device). Arguments are not checked.
///
/// Params:  normalized_dims – number of trailing dims that form a row
///          center – true: LayerNorm; false: RMSNorm, and the returned `mean` has no elements
/// Returns: y, of x's shape and dtype; mean and rstd [rows] in fp32, or in double for double input
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_op(const at::Tensor& x, int64_t normalized_dims,
                                                       const at::Tensor& weight, const at::Tensor& bias, double eps,
                                                       bool center);

/// Params:  wanted – which gradients of x, weight and bias to compute; the others stay undefined
/// Returns: dx, of x's shape and dtype; dweight and dbias [normalized_shape] in the dtype of `rstd`
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward_op(const at::Tensor& dy, const at::Tensor& x,
                                                                int64_t normalized_dims, const at::Tensor& weight,
                                                                const at::Tensor& mean, const at::Tensor& rstd,
                                                                std::array<bool, 3> wanted);

}  // namespace bellows::nn
