#pragma once

#include <torch/optim/optimizer.h>

#include <tuple>

namespace bellows::optim {

/// Options of a parameter group, in the style of libtorch's option classes.
class LionGroupOptions : public torch::optim::OptimizerCloneableOptions<LionGroupOptions> {
 public:
  LionGroupOptions(double lr = 1e-4) : lr_(lr) {}
  TORCH_ARG(double, lr);
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
};

class LionParamState : public torch::optim::OptimizerCloneableParamState<LionParamState> {
  TORCH_ARG(at::Tensor, exp_avg) = {};

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

}  // namespace bellows::optim
