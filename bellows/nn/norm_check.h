#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::nn {

/// Returns whether Bellows has a kernel for this input. On CUDA, this requires a build with -DBELLOWS_CUDA=ON and an
/// input that autocast would not cast.
bool has_norm_kernel(const at::Tensor& x);

/// Checks the arguments of the norms.
/// Throws: c10::ValueError if shapes, dtypes or devices do not match, or eps is not above 0
void check_norm(const char* function, const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight,
                const at::Tensor& bias, double eps);

}  // namespace bellows::nn
