#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/optim/optimizers.h"

namespace bellows::optim {

/// How Muon's step size depends on the shape of a matrix.
enum class MuonRate {
  original,         ///< lr · √max(1, rows / columns)
  match_rms_adamw,  ///< lr · 0.2 · √max(rows, columns): the size of AdamW's updates, so that lr has the same meaning
};

/// The options and defaults of torch.optim.Muon. The options whose names begin with `adamw` are used for the parameters
/// that Muon cannot update.
struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  double ns_a = 3.4445, ns_b = -4.7750, ns_c = 2.0315;  ///< coefficients of the Newton–Schulz iteration
  double eps = 1e-7;                                    ///< lower bound of the norm by which the matrix is divided
  int64_t ns_steps = 5;
  MuonRate adjust_lr_fn = MuonRate::original;
  at::ScalarType ns_dtype = at::kBFloat16;  ///< dtype of the Newton–Schulz iteration
  double adamw_lr_factor = 1;               ///< the learning rate of AdamW is lr times this factor
  double adamw_beta1 = 0.9, adamw_beta2 = 0.999, adamw_eps = 1e-8;
  bool maximize = false;
  bool master_weights = false;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// Options of a parameter group, in the style of libtorch's option classes.
class MuonGroupOptions : public torch::optim::OptimizerCloneableOptions<MuonGroupOptions> {
 public:
  MuonGroupOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, weight_decay) = 0.1;
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(double, eps) = 1e-7;
  TORCH_ARG(int64_t, ns_steps) = 5;
  TORCH_ARG(double, ns_a) = 3.4445;
  TORCH_ARG(double, ns_b) = -4.7750;
  TORCH_ARG(double, ns_c) = 2.0315;
  TORCH_ARG(bool, match_rms_adamw) = false;
  TORCH_ARG(bool, adamw) = false;  ///< update all parameters of the group with AdamW
  TORCH_ARG(double, adamw_lr_factor) = 1;
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, adamw_eps) = 1e-8;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
};

/// The state of a matrix is its momentum_buffer. The state of a parameter that AdamW updates is exp_avg and exp_avg_sq.
class MuonParamState : public torch::optim::OptimizerCloneableParamState<MuonParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, momentum_buffer) = {};
  TORCH_ARG(at::Tensor, exp_avg) = {};
  TORCH_ARG(at::Tensor, exp_avg_sq) = {};

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Momentum whose update is replaced with the nearest orthogonal matrix, approximately, by a Newton–Schulz iteration.
/// Parameters that are not matrices, and all parameters of a group with the option `adamw`, are updated with AdamW.
/// Usually, embeddings and the layer of the outputs are in such a group (muon_groups()).
/// Numerics: equals torch.optim.Muon and torch.optim.AdamW to 1e-12 in float64, if the Newton–Schulz iteration is in
///           float64, too (tests/optim/layerwise_test.cpp). With ns_dtype bf16, as in Python, an update has a relative error
///           of about 1 %
/// Cost:     with ns_steps = 5, 15 matrix multiplications per matrix. They are operators of libtorch, so the step does
///           not unscale gradients itself
/// Ref:      torch.optim.Muon; kellerjordan.github.io/posts/muon; arXiv:2502.16982 (match_rms_adamw)
class Muon : public LibtorchOptimizer {
 public:
  Muon(std::vector<at::Tensor> parameters, const MuonOptions& options);
  /// Params: groups – groups with options of class MuonGroupOptions; groups without options use `options`
  Muon(const ParamGroups& groups, const MuonOptions& options);
  Muon(const std::vector<PatternGroup>& groups, const MuonOptions& options);
  bool takes_grad_scale() const override { return false; }

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;

 private:
  at::ScalarType ns_dtype_;
};

/// Divides a model's parameters into two groups: those for Muon, and those for AdamW. The second group contains the
/// parameters that are not matrices, and the parameters whose names match one of the patterns (groups.h). A group without
/// parameters is left out.
LibtorchOptimizer::ParamGroups muon_groups(const Model& model, const std::vector<std::string>& adamw_patterns,
                                           const MuonOptions& options);

/// Returns an approximation of U · Vᵀ for the matrix U · S · Vᵀ, computed in `dtype`.
/// Throws: c10::ValueError if `matrix` does not have two dims
at::Tensor newton_schulz(const at::Tensor& matrix, const MuonGroupOptions& options, at::ScalarType dtype);

}  // namespace bellows::optim
