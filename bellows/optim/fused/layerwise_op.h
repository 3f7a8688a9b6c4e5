#pragma once

#include <vector>

#include "bellows/kernels/layerwise.h"
#include "bellows/optim/fused/fused_step.h"
#include "bellows/optim/lamb.h"
#include "bellows/optim/novograd.h"

namespace bellows::optim {

/// Returns the kernel's parameters for one step.
/// Params: step – number of the step, which starts at 1
kernels::LambRule layerwise_rule(const LambGroupOptions& options, double step);
kernels::NovogradRule layerwise_rule(const NovoGradGroupOptions& options, double step);

/// Collects the parameters of a step whose updates depend on norms over whole parameters, and runs it. Tensors that
/// are not dense, or have another layout than their parameter, are copied and written back.
class LayerwiseStep {
 public:
  /// Params: seconds_like_weight – `second` has the parameter's shape; otherwise, it is one number
  explicit LayerwiseStep(bool seconds_like_weight) : seconds_like_weight_(seconds_like_weight) {}
  /// Params: master – undefined if the parameter has no master weight
  ///         step – number of the step, which starts at 1
  void add(const at::Tensor& parameter, const at::Tensor& master, const at::Tensor& first, const at::Tensor& second,
           int64_t step);
  /// Runs kernels::layerwise_step(). If a tap defers operators, it runs as the operator `bellows::lamb_step_` or
  /// `bellows::novograd_step_`.
  /// Params: grad_norm – norm of all gradients, by which LAMB clips; undefined: no clipping
  void run(const LambGroupOptions& options, const at::Tensor& grad_norm, const FusedStep& step);
  void run(const NovoGradGroupOptions& options, const FusedStep& step);

 private:
  template <class Options>
  void run_as(const Options& options, const at::Tensor& grad_norm, const FusedStep& step);
  at::Tensor laid_out(const at::Tensor& tensor, const at::Tensor& like);

  bool seconds_like_weight_;
  TensorList weights_, grads_, firsts_, seconds_;
  std::vector<at::Scalar> steps_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  ///< each tensor with the result that is copied to it
};

}  // namespace bellows::optim
