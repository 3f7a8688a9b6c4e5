#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace bellows::nn {

/// The kernels as operators of the dispatcher, `bellows::norm` and `bellows::norm_backward`, so that whatever watches or
/// defers operators sees them. Below autograd; for the CPU, the meta device and, with -DBELLOWS_CUDA=ON, CUDA (untested on a
/// device). Arguments are not checked here.
///
/// Params:   normalized_dims – how many of the last dims make a row
///           center – true: LayerNorm; false: RMSNorm, whose `mean` has no elements
/// Returns:  y as x; mean, rstd [rows] in fp32, for double in double
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_op(const at::Tensor& x, int64_t normalized_dims,
                                                       const at::Tensor& weight, const at::Tensor& bias, double eps,
                                                       bool center);

/// Params:   wanted – gradients of x, weight and bias; the others stay undefined
/// Returns:  dx as x; dweight, dbias [normalized_shape] in the dtype of `rstd`
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward_op(const at::Tensor& dy, const at::Tensor& x,
                                                                int64_t normalized_dims, const at::Tensor& weight,
                                                                const at::Tensor& mean, const at::Tensor& rstd,
                                                                std::array<bool, 3> wanted);

}  // namespace bellows::nn
