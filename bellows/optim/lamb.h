#pragma once

#include <string_view>
#include <tuple>
#include <vector>

#include "bellows/optim/optimizers.h"

namespace bellows::optim {

/// The options and defaults of apex.optimizers.FusedLAMB. Its `adam_w_mode` and `use_nvlamb` are here
/// `decoupled_weight_decay` and `always_adapt`.
struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  double max_grad_norm = 1;            ///< clips the norm of all gradients together; 0: no clipping
  bool bias_correction = true;         ///< divide moments by 1 - beta^step
  bool decoupled_weight_decay = true;  ///< add the weight decay to the update and not to the gradient
  bool grad_averaging = true;          ///< multiply the gradient in the first moment by 1 - beta1
  bool always_adapt = false;           ///< adapt the step size of parameters without weight decay, too
  bool maximize = false;
  bool master_weights = false;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// Options of a parameter group, in the style of libtorch's option classes.
class LambGroupOptions : public torch::optim::OptimizerCloneableOptions<LambGroupOptions> {
 public:
  LambGroupOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0.01;
  TORCH_ARG(double, max_grad_norm) = 1;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(bool, decoupled_weight_decay) = true;
  TORCH_ARG(bool, grad_averaging) = true;
  TORCH_ARG(bool, always_adapt) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
};

class LambParamState : public torch::optim::OptimizerCloneableParamState<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg) = {};
  TORCH_ARG(at::Tensor, exp_avg_sq) = {};

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  static std::vector<int64_t> sizes_of(std::string_view, const at::Tensor& parameter) {
    return parameter.sizes().vec();
  }
  /// Returns the dtype of the state: fp32, or float64 for a float64 parameter.
  static at::ScalarType dtype_of(const at::Tensor& parameter);
};

/// Adam whose step size for each parameter is proportional to the norm of the parameter, for large batches.
/// Numerics: equals the formula of apex.optimizers.FusedLAMB to 1e-12 in float64 over 50 steps
///           (tests/optim/layerwise_test.cpp). For bf16 and fp16 parameters, state and arithmetic are in fp32, with or
///           without master weights
/// Ref:      arXiv:1904.00962
class Lamb : public LibtorchOptimizer {
 public:
  Lamb(std::vector<at::Tensor> parameters, const LambOptions& options);
  /// Params: groups – groups with options of class LambGroupOptions; groups without options use `options`
  Lamb(const ParamGroups& groups, const LambOptions& options);
  Lamb(const std::vector<PatternGroup>& groups, const LambOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

}  // namespace bellows::optim
