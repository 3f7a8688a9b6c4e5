#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bellows::parallel {

/// Copies the elements of tensors with the same dtype and device, one after the other, into a new tensor: [N].
at::Tensor flattened(const std::vector<at::Tensor>& tensors);
/// Copies the elements of a tensor with the sizes of flattened() back to `tensors`.
void copy_flat(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);

}  // namespace bellows::parallel
