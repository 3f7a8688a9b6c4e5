#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <utility>

namespace bellows::optim {

/// Lends parameter groups and state to libtorch's own optimizer for one call.
class Lend {
 public:
  Lend(torch::optim::Optimizer& from, torch::optim::Optimizer& to) : from_(from), to_(to) { exchange(); }
  ~Lend() { exchange(); }
  Lend(const Lend&) = delete;
  Lend& operator=(const Lend&) = delete;

 private:
  void exchange() {
    std::swap(from_.param_groups(), to_.param_groups());
    from_.state().swap(to_.state());  // std::swap makes a third table, which allocates
  }
  torch::optim::Optimizer &from_, &to_;
};

inline bool is_low_precision(const at::Tensor& p) {
  return p.scalar_type() == at::kBFloat16 || p.scalar_type() == at::kHalf;
}

}  // namespace bellows::optim
