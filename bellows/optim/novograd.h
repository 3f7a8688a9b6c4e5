#pragma once

#include <string_view>
#include <tuple>
#include <vector>

#include "bellows/optim/optimizers.h"

namespace bellows::optim {

/// The options and defaults of apex.optimizers.FusedNovoGrad. Its `norm_type = 0` is here `max_norm`.
struct NovoGradOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;  ///< divide the first moment by 1 - beta1^step, and the norm by √(1 - beta2^step)
  bool grad_averaging = true;   ///< multiply the gradient in the first moment by 1 - beta1
  bool init_zero = false;       ///< average the norms from 0. Otherwise, from the norm of the first gradient
  bool reg_inside_moment =
      false;              ///< the first moment averages normalized gradients with weight decay, as in the paper
  bool max_norm = false;  ///< use the largest absolute value of a gradient instead of its 2-norm
  bool maximize = false;
  bool master_weights = false;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// Options of a parameter group, in the style of libtorch's option classes.
class NovoGradGroupOptions : public torch::optim::OptimizerCloneableOptions<NovoGradGroupOptions> {
 public:
  NovoGradGroupOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(bool, grad_averaging) = true;
  TORCH_ARG(bool, init_zero) = false;
  TORCH_ARG(bool, reg_inside_moment) = false;
  TORCH_ARG(bool, max_norm) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
};

/// Shapes: grad_norm [], the average of the norms of the gradient
class NovoGradParamState : public torch::optim::OptimizerCloneableParamState<NovoGradParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg) = {};
  TORCH_ARG(at::Tensor, grad_norm) = {};

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// Returns the shape of the state tensor with this name.
  static std::vector<int64_t> sizes_of(std::string_view name, const at::Tensor& parameter);
  /// Returns the dtype of the state: fp32, or float64 for a float64 parameter.
  static at::ScalarType dtype_of(const at::Tensor& parameter);
};

/// Like Adam, but the second moment is one number per parameter, an average of the norms of its gradients. The state
/// therefore takes half the memory of Adam's.
/// Numerics: equals the formula of apex.optimizers.FusedNovoGrad to 1e-12 in float64 over 50 steps
///           (tests/optim/layerwise_test.cpp). For bf16 and fp16 parameters, state and arithmetic are in fp32, with or
///           without master weights
/// Ref:      arXiv:1905.11286
class NovoGrad : public LibtorchOptimizer {
 public:
  NovoGrad(std::vector<at::Tensor> parameters, const NovoGradOptions& options);
  /// Params: groups – groups with options of class NovoGradGroupOptions; groups without options use `options`
  NovoGrad(const ParamGroups& groups, const NovoGradOptions& options);
  NovoGrad(const std::vector<PatternGroup>& groups, const NovoGradOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

}  // namespace bellows::optim
