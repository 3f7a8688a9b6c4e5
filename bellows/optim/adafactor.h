#pragma once

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "bellows/optim/optimizers.h"

namespace bellows::optim {

/// As transformers.Adafactor's, whose `lr=None` is relative_step without an lr here.
struct AdafactorOptions {
  /// Without relative_step the step itself; with it a factor of the relative step, 1 if not given.
  std::optional<double> lr = {};
  double eps1 = 1e-30;          ///< added to squares of gradients
  double eps2 = 1e-3;           ///< the least scale of a parameter
  double clip_threshold = 1;    ///< an update whose root mean square is above is scaled down to it
  double decay_rate = -0.8;     ///< the second moment forgets by 1 - step^decay_rate
  double beta1 = 0;             ///< 0: no first moment
  double weight_decay = 0;      ///< times the step, of the weight
  bool scale_parameter = true;  ///< the step is relative to the parameter's root mean square
  bool relative_step = true;    ///< the step is min(0.01, 1/√t)
  bool warmup_init = false;     ///< and at most 1e-6 · t: starts slowly
  bool maximize = false;
  bool master_weights = false;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// An Adafactor parameter group's options, in the manner of libtorch's classes.
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

/// A parameter's state under Adafactor: of matrices (the last two dimensions) the means of squares over columns and over
/// rows, of scalars and vectors the mean of squares; the first moment with beta1.
/// Shapes: exp_avg_sq_row [..., R], exp_avg_sq_col [..., C] for a parameter [..., R, C]; the others as the parameter
class AdafactorParamState : public torch::optim::OptimizerCloneableParamState<AdafactorParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg_sq_row) = {};
  TORCH_ARG(at::Tensor, exp_avg_sq_col) = {};
  TORCH_ARG(at::Tensor, exp_avg_sq) = {};
  TORCH_ARG(at::Tensor, exp_avg) = {};

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// The shape of a piece of state, by its name.
  static std::vector<int64_t> sizes_of(std::string_view name, const at::Tensor& parameter);
  /// fp32, or float64 beside a float64 parameter.
  static at::ScalarType dtype_of(const at::Tensor& parameter);
};

/// Adam with the second moment kept as two vectors a matrix: some bytes a row and a column in place of eight a weight.
/// Numerics: equals transformers.Adafactor to 1e-12 in float64 over 50 steps, and torch.optim.Adafactor where the two
///           agree (tests/optim/adafactor_test.cpp). State and arithmetic are fp32 for bf16 and fp16 parameters, with and
///           without masters. An infinite or NaN gradient makes its parameter NaN, as in Python
/// Ref:      arXiv:1804.04235; transformers.Adafactor
class Adafactor : public LibtorchOptimizer {
 public:
  Adafactor(std::vector<at::Tensor> parameters, const AdafactorOptions& options);
  /// Params: groups – with options of class AdafactorGroupOptions, or none to take `options`
  Adafactor(const ParamGroups& groups, const AdafactorOptions& options);
  Adafactor(const std::vector<PatternGroup>& groups, const AdafactorOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

}  // namespace bellows::optim
