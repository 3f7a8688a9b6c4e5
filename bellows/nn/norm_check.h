#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::nn {

/// Is there a kernel of ours for this input? On CUDA in a build with -DBELLOWS_CUDA=ON, and not for what autocast would cast.
bool has_norm_kernel(const at::Tensor& x);

/// What the norms ask of their arguments.
/// Throws: c10::ValueError – shapes, dtypes or devices that do not fit; an eps that is not above 0
void check_norm(const char* function, const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight,
                const at::Tensor& bias, double eps);

}  // namespace bellows::nn
