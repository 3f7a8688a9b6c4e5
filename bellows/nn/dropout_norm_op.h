#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace bellows::nn {

/// The kernels as dispatcher operators, `bellows::dropout_norm` and `bellows::dropout_norm_backward`. Taps can
/// therefore observe or defer them. The operators are below autograd. They support the CPU, the meta device and, with
/// -DBELLOWS_CUDA=ON, CUDA (untested on a device). Arguments are not checked.
/// Params:  x, residual – [N, C], of the same dtype
///          center – true: LayerNorm; false: RMSNorm, and the returned `mean` has no elements
/// Returns: y and sum, of x's shape and dtype; mean and rstd [N] in fp32, or in double for double input
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> dropout_norm_op(const at::Tensor& x,
                                                                           const at::Tensor& residual,
                                                                           const at::Tensor& weight,
                                                                           const at::Tensor& bias, int64_t seed,
                                                                           double p, double eps, bool center);

/// Params:  dsum – gradient from other uses of the sum; undefined if there are none
///          wanted – which gradients of x, weight and bias to compute; the others stay undefined
/// Returns: dresidual and dx, of the sum's shape and dtype; dweight and dbias [C] in the dtype of `rstd`
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> dropout_norm_backward_op(
    const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& sum, const at::Tensor& weight,
    const at::Tensor& mean, const at::Tensor& rstd, int64_t seed, double p, std::array<bool, 3> wanted);

}  // namespace bellows::nn
