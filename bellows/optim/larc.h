#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include "bellows/optim/optimizers.h"

namespace bellows::optim {

/// While it lives, the gradients of an optimizer contain the weight decay and the adaptive rates of LARC, and its groups
/// have no weight decay. The destructor restores the weight decay. Private to the component.
/// Cost:    one pass over the parameters and two over the gradients. The host does not wait for the device
/// Throws:  c10::ValueError if a gradient is sparse
class LibtorchOptimizer::Larc {
 public:
  explicit Larc(LibtorchOptimizer& optimizer);
  ~Larc();
  Larc(const Larc&) = delete;
  Larc& operator=(const Larc&) = delete;

 private:
  void scale(const torch::optim::OptimizerParamGroup& group) const;
  void scale(const std::vector<at::Tensor>& parameters, double lr, double decay) const;

  LibtorchOptimizer& optimizer_;
  std::vector<double> decays_;  ///< weight decay of each group
};

}  // namespace bellows::optim
