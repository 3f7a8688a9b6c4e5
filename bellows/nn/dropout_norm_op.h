#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace bellows::nn {

/// The kernels as operators of the dispatcher, `bellows::dropout_norm` and `bellows::dropout_norm_backward`, so that whatever
/// watches or defers operators sees them. Below autograd; for the CPU, the meta device and, with -DBELLOWS_CUDA=ON, CUDA
/// (untested on a device). Arguments are not checked here.
/// Params:   x, residual – [N, C], of one dtype
///           center – true: LayerNorm; false: RMSNorm, whose `mean` has no elements
/// Returns:  y and sum as x; mean, rstd [N] in fp32, for double in double
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> dropout_norm_op(const at::Tensor& x,
                                                                           const at::Tensor& residual,
                                                                           const at::Tensor& weight,
                                                                           const at::Tensor& bias, int64_t seed,
                                                                           double p, double eps, bool center);

/// Params:   dsum – what the sum's own reader gave; undefined: nobody
///           wanted – gradients of x, weight and bias; the others stay undefined
/// Returns:  dresidual, dx as the sum; dweight, dbias [C] in the dtype of `rstd`
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> dropout_norm_backward_op(
    const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& sum, const at::Tensor& weight,
    const at::Tensor& mean, const at::Tensor& rstd, int64_t seed, double p, std::array<bool, 3> wanted);

}  // namespace bellows::nn
