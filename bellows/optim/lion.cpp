#include "bellows/optim/lion.h"

#include <torch/torch.h>

#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/archive.h"

namespace bellows::optim {

void LionGroupOptions::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(archive, *this);
}
void LionGroupOptions::serialize(torch::serialize::InputArchive& archive) {
  read_fields(archive, *this);
}
void LionParamState::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(archive, *this);
}
void LionParamState::serialize(torch::serialize::InputArchive& archive) {
  read_fields(archive, *this);
}

namespace {

void check_lion(const LionGroupOptions& o) {
  check_option("Lion", "lr", o.lr());
  check_option("Lion", "beta1", std::get<0>(o.betas()), 0, 1);
  check_option("Lion", "beta2", std::get<1>(o.betas()), 0, 1);
  check_option("Lion", "weight_decay", o.weight_decay());
}

at::Tensor& lion_average(torch::optim::Optimizer& optimizer, const at::Tensor& p) {
  auto& slot = optimizer.state()[p.unsafeGetTensorImpl()];
  if (!slot) {
    auto fresh = std::make_unique<LionParamState>();
    fresh->exp_avg(at::zeros_like(p.detach()));
    slot = std::move(fresh);
  }
  return static_cast<LionParamState&>(*slot).exp_avg();
}

/// Parameter by parameter.
void lion_group(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group) {
  const auto& o = static_cast<const LionGroupOptions&>(group.options());
  const auto [beta1, beta2] = o.betas();
  for (const at::Tensor& p : group.params()) {
    const at::Tensor& grad = p.grad();
    if (!grad.defined()) continue;
    at::Tensor& average = lion_average(optimizer, p);
    if (o.weight_decay() != 0) p.mul_(1 - o.lr() * o.weight_decay());
    p.add_(average.mul(beta1).add_(grad, 1 - beta1).sign_(), -o.lr());
    average.mul_(beta2).add_(grad, 1 - beta2);
  }
}

std::unique_ptr<torch::optim::Optimizer> reference_of(const LionOptions& options) {
  const auto o = LionGroupOptions(options.lr).betas({options.beta1, options.beta2}).weight_decay(options.weight_decay);
  check_lion(o);
  return std::make_unique<LoopOptimizer<LionGroupOptions, LionParamState>>(o, lion_group);
}

}  // namespace

Lion::Lion(std::vector<at::Tensor> parameters, const LionOptions& options)
    : Lion(one_group(std::move(parameters)), options) {}
Lion::Lion(const std::vector<PatternGroup>& groups, const LionOptions& options)
    : Lion(with_options(groups, reference_of(options)->defaults()), options) {}
Lion::Lion(const ParamGroups& groups, const LionOptions& options)
    : LibtorchOptimizer(reference_of(options), groups, options.impl,
                        common_of("Lion", options, /*sparse=*/false, /*aten_cuda=*/false)) {
  for (const auto& group : param_groups_) check_lion(static_cast<const LionGroupOptions&>(group.options()));
}

void Lion::check(const torch::optim::OptimizerOptions& options) const {
  check_lion(static_cast<const LionGroupOptions&>(options));
}

void Lion::step_foreach(torch::optim::OptimizerParamGroup& group) {
  const auto& o = static_cast<const LionGroupOptions&>(group.options());
  const auto [beta1, beta2] = o.betas();
  for_each_list(group.params(), [&, beta1 = beta1, beta2 = beta2](const TensorList& parameters) {
    const TensorList grads = gradients_of(parameters);
    TensorList averages;
    for (const at::Tensor& p : parameters) averages.push_back(lion_average(*this, p));
    if (o.weight_decay() != 0) at::_foreach_mul_(parameters, 1 - o.lr() * o.weight_decay());
    const TensorList directions = at::_foreach_mul(averages, beta1);
    at::_foreach_add_(directions, grads, 1 - beta1);
    at::_foreach_sign_(directions);
    at::_foreach_add_(parameters, directions, -o.lr());
    at::_foreach_mul_(averages, beta2);
    at::_foreach_add_(averages, grads, 1 - beta2);
  });
}

void Lion::step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  const OptimizerInternals internals{*this};
  const auto& o = static_cast<const LionGroupOptions&>(group.options());
  const kernels::LionRule rule{
      .lr = o.lr(), .beta1 = std::get<0>(o.betas()), .beta2 = std::get<1>(o.betas()), .weight_decay = o.weight_decay()};
  std::vector<FusedTensor<kernels::LionRule>> tensors;
  for (const at::Tensor& p : group.params()) {
    if (!p.grad().defined()) continue;
    auto& t = tensors.emplace_back(internals.fused(p, rule));
    const auto fresh = [&] {
      LionParamState state;
      state.exp_avg(internals.new_state(p));
      return state;
    };
    t.state[0] = internals.state<LionParamState>(p, fresh).exp_avg();
  }
  run_fused(std::move(tensors), step);
}

}  // namespace bellows::optim
