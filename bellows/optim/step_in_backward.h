#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

namespace bellows::optim {

/// While it lives, each backward pass steps `optimizer`'s parameters one by one, each as soon as its gradient is
/// complete, and lets go of the gradient at once: gradients take the memory of the largest one instead of all. A loop
/// has no step() left:
/// ```
/// const auto stepping = optim::step_in_backward(optimizer);
/// for (const Batch& batch : batches) loss_of(batch).backward();
/// ```
/// Each backward pass is a step: there is nothing to accumulate, and no norm over all gradients. Learning rates may be set
/// between passes. Weights that several layers share are stepped once, with the sum of their gradients. A backward pass
/// that throws leaves the parameters stepped whose gradients had arrived.
/// Numerics: the bits of backward(), step(), zero_grad() (tests/optim/step_in_backward_test.cpp)
/// Cost:     a step() over one parameter for each
/// Threads:  safe where autograd steps parameters of several devices at once; one owner
/// Throws:   c10::ValueError – gradients that are there already (an accumulation goes on); LBFGS, a sharded optimizer; a
///           parameter with another hook behind its gradient (DistributedDataParallel, a second step_in_backward).
///           backward(): with create_graph. clip_grad_norm_(), clip_and_step() and a GradScaler's unscale_() and
///           step(): the gradients that they ask for are gone
/// Ref:      pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html
class StepInBackward {
 public:
  explicit StepInBackward(torch::optim::Optimizer& optimizer);
  ~StepInBackward();
  StepInBackward(const StepInBackward&) = delete;
  StepInBackward& operator=(const StepInBackward&) = delete;

 private:
  class Steps;
  std::unique_ptr<Steps> steps_;
};

/// Params: optimizer – has to outlive what is returned
std::unique_ptr<StepInBackward> step_in_backward(torch::optim::Optimizer& optimizer);

}  // namespace bellows::optim
