#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "bellows/recompute.h"

namespace bellows::recompute::testing {

/// How a block is called: plainly, or checkpointed in some way.
using Call = std::function<at::Tensor(const Layer& block, const at::Tensor& x)>;

inline at::Tensor plainly(const Layer& block, const at::Tensor& x) {
  return block(x);
}
inline at::Tensor checkpointed(const Layer& block, const at::Tensor& x) {
  return checkpoint(block, x);
}

/// Loss, gradients, buffers and what the generator draws next, after training steps from a fixed seed.
template <class Module>
std::vector<at::Tensor> trained(const Module& module, const std::function<at::Tensor()>& loss_of_step, int steps = 1) {
  torch::manual_seed(3);
  std::vector<at::Tensor> result;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor loss = loss_of_step();
    loss.backward();
    result.push_back(loss.detach());
  }
  for (const at::Tensor& p : module.parameters())
    result.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
  for (const at::Tensor& b : module.buffers()) result.push_back(b.clone());
  result.push_back(torch::rand({4}));
  return result;
}

/// The number of the first tensor that differs in a bit, or -1.
inline int64_t first_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return static_cast<int64_t>(i);
    if (a[i].defined() && !(a[i].scalar_type() == b[i].scalar_type() && at::equal(a[i], b[i])))
      return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace bellows::recompute::testing
