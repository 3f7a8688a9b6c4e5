#pragma once

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <vector>

namespace bellows::nn {

using GradcheckInputs = std::vector<at::Tensor>;
using GradcheckFunction = std::function<at::Tensor(const GradcheckInputs&)>;

/// Do autograd's gradients of a scalar made of function(inputs) agree with central differences, in float64 and with
/// torch.autograd.gradcheck's defaults? The scalar weighs every value of the result differently.
inline bool gradcheck(const GradcheckFunction& function, const GradcheckInputs& inputs) {
  const auto scalar = [&](const GradcheckInputs& at) {
    const at::Tensor y = function(at);
    return (y * torch::linspace(0.5, 1.5, y.numel(), y.options()).view_as(y)).sum();
  };
  GradcheckInputs leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
  const auto gradients = torch::autograd::grad({scalar(leaves)}, leaves);
  constexpr double eps = 1e-6, atol = 1e-5, rtol = 1e-3;
  for (size_t k = 0; k < leaves.size(); ++k) {
    const at::Tensor analytic = gradients[k].contiguous().flatten();
    for (int64_t i = 0; i < analytic.numel(); ++i) {
      const auto shifted = [&](double by) {
        GradcheckInputs moved;
        for (const at::Tensor& leaf : leaves) moved.push_back(leaf.detach().clone().requires_grad_());
        moved[k].data().view(-1)[i] += by;
        return scalar(moved).item<double>();
      };
      const double slope = (shifted(eps) - shifted(-eps)) / (2 * eps);
      if (!(std::abs(slope - analytic[i].item<double>()) <= atol + rtol * std::abs(slope))) return false;
    }
  }
  return true;
}

}  // namespace bellows::nn
