#pragma once

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "bellows/optim/optimizers.h"

namespace bellows::optim {

/// The options of transformers.Adafactor. The equivalent of `lr=None` in Python is an empty lr with relative_step set
/// to true.
struct AdafactorOptions {
  /// The step size. With relative_step, this value is instead a factor of the relative step size. An empty value then
  /// means 1.
  std::optional<double> lr = {};
  double eps1 = 1e-30;          ///< added to squared gradients
  double eps2 = 1e-3;           ///< lower bound of the parameter scale
  double clip_threshold = 1;    ///< updates with a larger root mean square are scaled down to this value
  double decay_rate = -0.8;     ///< decay of the second moment: 1 - step^decay_rate
  double beta1 = 0;             ///< 0: no first moment
  double weight_decay = 0;      ///< decoupled: each step subtracts weight_decay · step size · weight
  bool scale_parameter = true;  ///< multiply the step size by the parameter's root mean square
  bool relative_step = true;    ///< use the step size min(0.01, 1/√t), where t is the step
  bool warmup_init = false;     ///< with relative_step: limit the step size to 1e-6 · t
  bool maximize = false;
  bool master_weights = false;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// Options of a parameter group, in the style of libtorch's option classes.
class AdafactorGroupOptions : public torch::optim::OptimizerCloneableOptions<AdafactorGroupOptions> {
 public:
  AdafactorGroupOptions(double lr = 1) : lr_(lr) {}
  TORCH_ARG(double, lr);
  using Eps = std::tuple<double, double>;
  TORCH_ARG(Eps, eps) = std::make_tuple(1e-30, 1e-3);
  TORCH_ARG(double, clip_threshold) = 1;
  TORCH_ARG(double, decay_rate) = -0.8;
  TORCH_ARG(double, beta1) = 0;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, scale_parameter) = true;
  TORCH_ARG(bool, relative_step) = true;
  TORCH_ARG(bool, warmup_init) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
};

/// The state of a parameter. For a tensor with at least two dims, it contains mean squares over the columns and over
/// the rows of the last two dims. For a scalar or vector, it contains a mean square of each element. With beta1, the
/// state also contains the first moment.
/// Shapes: exp_avg_sq_row [..., R], exp_avg_sq_col [..., C] for a parameter [..., R, C]; other state has the
///         parameter's shape
class AdafactorParamState : public torch::optim::OptimizerCloneableParamState<AdafactorParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg_sq_row) = {};
  TORCH_ARG(at::Tensor, exp_avg_sq_col) = {};
  TORCH_ARG(at::Tensor, exp_avg_sq) = {};
  TORCH_ARG(at::Tensor, exp_avg) = {};

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// Returns the shape of the state tensor with this name.
  static std::vector<int64_t> sizes_of(std::string_view name, const at::Tensor& parameter);
  /// Returns the dtype of the state: fp32, or float64 for a float64 parameter.
  static at::ScalarType dtype_of(const at::Tensor& parameter);
};

/// Adam with a factored second moment. It stores two vectors per matrix, that is, a few bytes per row and column
/// instead of eight bytes per weight.
/// Numerics: equals transformers.Adafactor to 1e-12 in float64 over 50 steps. It also equals torch.optim.Adafactor in
///           the cases in which both Python implementations agree (tests/optim/adafactor_test.cpp). For bf16 and fp16
///           parameters, state and arithmetic are in fp32, with or without master weights. An infinite or NaN gradient
///           sets its parameter to NaN, as in Python.
/// Ref:      arXiv:1804.04235; transformers.Adafactor
class Adafactor : public LibtorchOptimizer {
 public:
  Adafactor(std::vector<at::Tensor> parameters, const AdafactorOptions& options);
  /// Params: groups – groups with options of class AdafactorGroupOptions; groups without options use `options`
  Adafactor(const ParamGroups& groups, const AdafactorOptions& options);
  Adafactor(const std::vector<PatternGroup>& groups, const AdafactorOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

}  // namespace bellows::optim
