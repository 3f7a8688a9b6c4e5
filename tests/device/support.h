#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

namespace bellows::test {

inline const c10::Device gpu(c10::kCUDA, 0);

using Tensors = std::vector<at::Tensor>;

/// Copies on a device, as leaves that require gradients.
inline Tensors leaves_on(const c10::Device& device, at::ScalarType dtype, const Tensors& values) {
  Tensors result;
  for (const at::Tensor& value : values) {
    result.push_back(value.defined() ? value.to(device, dtype).detach().requires_grad_() : value);
  }
  return result;
}

/// The result of a function and the gradients of its inputs, in double on the CPU.
inline Tensors result_and_gradients(const std::function<at::Tensor(const Tensors&)>& function, const Tensors& inputs) {
  const at::Tensor y = function(inputs);
  (y * torch::linspace(0.5, 1.5, y.numel(), y.options()).view_as(y)).sum().backward();
  Tensors result = {y};
  for (const at::Tensor& input : inputs) {
    if (input.defined()) result.push_back(input.grad());
  }
  for (at::Tensor& t : result) t = t.detach().to(at::kCPU, at::kDouble);
  return result;
}

/// |a - b| / |b|, which is NaN if a value is.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / (b.norm() + 1e-300)).item<double>();
}

}  // namespace bellows::test
