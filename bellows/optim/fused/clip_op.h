#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bellows::optim {

// Clipping by kernels of our own, on the CPU. Where a client of the taps defers operators, they are ones themselves, `bellows::grad_norm`
// and `bellows::scale_to_norm_`: gradients need no values yet.

/// The norm of all tensors as if they were one vector, a 0-d tensor; undefined where there is no kernel for it.
at::Tensor norm_by_kernel(const std::vector<at::Tensor>& tensors, double norm_type);

/// Multiplies tensors by max_norm / (total_norm + 1e-6) where that is below 1.
void scale_on_cpu(const std::vector<at::Tensor>& tensors, const at::Tensor& total_norm, double max_norm);

}  // namespace bellows::optim
