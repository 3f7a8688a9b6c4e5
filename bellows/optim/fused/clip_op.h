#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bellows::optim {

// Gradient clipping with kernels of Bellows, on the CPU. If a tap defers operators, these functions are the operators
// `bellows::grad_norm` and `bellows::scale_to_norm_`, so the gradients can be pending.

/// The norm of all tensors as if they were one vector, as a 0-d tensor; undefined if there is no kernel.
at::Tensor norm_by_kernel(const std::vector<at::Tensor>& tensors, double norm_type);

/// Multiplies tensors by max_norm / (total_norm + 1e-6) if that is below 1.
void scale_on_cpu(const std::vector<at::Tensor>& tensors, const at::Tensor& total_norm, double max_norm);

}  // namespace bellows::optim
