#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bellows::optim {

// Gradient clipping on the CPU with the kernels of Bellows. If a tap defers operators, these functions run as the
// operators `bellows::grad_norm` and `bellows::scale_to_norm_`. The gradients can then be pending.

/// Returns the norm of all tensors as if they were one vector, as a 0-d tensor. The result is undefined if no kernel
/// supports the tensors or the norm.
at::Tensor norm_by_kernel(const std::vector<at::Tensor>& tensors, double norm_type);

/// Multiplies the tensors by max_norm / (total_norm + 1e-6) if this factor is below 1.
void scale_on_cpu(const std::vector<at::Tensor>& tensors, const at::Tensor& total_norm, double max_norm);

}  // namespace bellows::optim
