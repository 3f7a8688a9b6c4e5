#include "bellows/optim/lamb.h"

#include <torch/torch.h>

#include "bellows/optim/fused/clip_op.h"
#include "bellows/optim/fused/layerwise_op.h"
#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/state/archive.h"

namespace bellows::optim {

void LambGroupOptions::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(archive, *this);
}
void LambGroupOptions::serialize(torch::serialize::InputArchive& archive) {
  read_fields(archive, *this);
}
void LambParamState::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(archive, *this);
}
void LambParamState::serialize(torch::serialize::InputArchive& archive) {
  read_fields(archive, *this);
}

at::ScalarType LambParamState::dtype_of(const at::Tensor& p) {
  return p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

namespace {

constexpr const char* lamb_name = "Lamb";

void check_lamb(const LambGroupOptions& o) {
  check_option(lamb_name, "lr", o.lr());
  check_option(lamb_name, "beta1", std::get<0>(o.betas()), 0, 1);
  check_option(lamb_name, "beta2", std::get<1>(o.betas()), 0, 1);
  check_option(lamb_name, "eps", o.eps());
  check_option(lamb_name, "weight_decay", o.weight_decay());
  check_option(lamb_name, "max_grad_norm", o.max_grad_norm());
}

LambParamState& lamb_state(torch::optim::Optimizer& optimizer, const at::Tensor& p) {
  auto& slot = optimizer.state()[p.unsafeGetTensorImpl()];
  if (!slot) {
    auto fresh = std::make_unique<LambParamState>();
    const auto type = p.options().dtype(LambParamState::dtype_of(p)).requires_grad(false);
    fresh->exp_avg(at::zeros_like(p.detach(), type, at::MemoryFormat::Preserve));
    fresh->exp_avg_sq(at::zeros_like(p.detach(), type, at::MemoryFormat::Preserve));
    slot = std::move(fresh);
  }
  return static_cast<LambParamState&>(*slot);
}

bool clips(const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const LambGroupOptions&>(group.options()).max_grad_norm() > 0;
}

/// Returns the norm of the gradients of all groups as one vector, as a 0-d tensor.
at::Tensor norm_of_gradients(const torch::optim::Optimizer& optimizer) {
  TensorList grads;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) {
      if (p.grad().defined()) grads.push_back(p.grad());
    }
  }
  if (grads.empty()) return {};
  if (const at::Tensor norm = norm_by_kernel(grads, 2); norm.defined()) return norm;
  TensorList norms = at::_foreach_norm(grads);
  for (at::Tensor& norm : norms) norm = norm.to(grads[0].device(), at::kDouble);
  return at::stack(norms).norm();
}

/// The step for one parameter, operator by operator, on any device.
/// Params: divisor – divides the gradient; undefined: no clipping
void lamb_loop(torch::optim::Optimizer& optimizer, const at::Tensor& p, const LambGroupOptions& o,
               const at::Tensor& divisor) {
  LambParamState& state = lamb_state(optimizer, p);
  state.step(state.step() + 1);
  const kernels::LambRule rule = layerwise_rule(o, static_cast<double>(state.step()));
  const at::ScalarType type = LambParamState::dtype_of(p);
  const at::Tensor weight = p.detach().to(type);
  at::Tensor grad = p.grad().to(type);
  if (divisor.defined()) grad = grad / divisor.to(p.device(), type);
  if (rule.weight_decay != 0 && !rule.decoupled) grad = grad + weight * rule.weight_decay;
  state.exp_avg().mul_(rule.beta1).add_(grad, rule.new1);
  state.exp_avg_sq().mul_(rule.beta2).addcmul_(grad, grad, 1 - rule.beta2);
  const at::Tensor root = (state.exp_avg_sq() / rule.correction2).sqrt_().add_(rule.eps);
  at::Tensor update = (state.exp_avg() / rule.correction1).div_(root);
  if (rule.weight_decay != 0 && rule.decoupled) update.add_(weight, rule.weight_decay);
  if (rule.adapts) {
    const at::Tensor of_weight = weight.norm(), of_update = update.norm();
    const at::Tensor skipped = (of_weight == 0).logical_or_(of_update == 0);
    update.mul_((of_weight / of_update).masked_fill_(skipped, 1));
  }
  weight.sub_(update, rule.lr);
  if (!weight.is_alias_of(p)) p.detach().copy_(weight);
}

void lamb_group(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group) {
  const auto& o = static_cast<const LambGroupOptions&>(group.options());
  at::Tensor divisor = clips(group) ? norm_of_gradients(optimizer) : at::Tensor();
  if (divisor.defined()) divisor = (divisor / o.max_grad_norm()).clamp_min(1);
  for (const at::Tensor& p : group.params()) {
    if (p.grad().defined()) lamb_loop(optimizer, p, o, divisor);
  }
}

std::unique_ptr<torch::optim::Optimizer> reference_of(const LambOptions& options) {
  const auto o = LambGroupOptions(options.lr)
                     .betas({options.beta1, options.beta2})
                     .eps(options.eps)
                     .weight_decay(options.weight_decay)
                     .max_grad_norm(options.max_grad_norm)
                     .bias_correction(options.bias_correction)
                     .decoupled_weight_decay(options.decoupled_weight_decay)
                     .grad_averaging(options.grad_averaging)
                     .always_adapt(options.always_adapt);
  check_lamb(o);
  return std::make_unique<LoopOptimizer<LambGroupOptions, LambParamState>>(o, lamb_group);
}

}  // namespace

Lamb::Lamb(std::vector<at::Tensor> parameters, const LambOptions& options)
    : Lamb(one_group(std::move(parameters)), options) {}
Lamb::Lamb(const std::vector<PatternGroup>& groups, const LambOptions& options)
    : Lamb(with_options(groups, reference_of(options)->defaults()), options) {}
Lamb::Lamb(const ParamGroups& groups, const LambOptions& options)
    : LibtorchOptimizer(reference_of(options), groups, options.impl, [&] {
        Common common = common_of(lamb_name, options, /*sparse=*/false, /*aten_cuda=*/false);
        common.own_cuda = false, common.whole_parameters = true;
        return common;
      }()) {
  for (const auto& group : param_groups_) Lamb::check(group.options());
}

void Lamb::check(const torch::optim::OptimizerOptions& options) const {
  check_lamb(static_cast<const LambGroupOptions&>(options));
}

int64_t* Lamb::step_count(torch::optim::OptimizerParamState& state) const {
  return &static_cast<LambParamState&>(state).step();
}

void Lamb::step_foreach(torch::optim::OptimizerParamGroup& group) {
  lamb_group(*this, group);
}

void Lamb::step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  const OptimizerInternals internals{*this};
  LayerwiseStep all(/*seconds_like_weight=*/true);
  for (const at::Tensor& p : group.params()) {
    if (!p.grad().defined()) continue;
    LambParamState& state = lamb_state(*this, p);
    state.step(state.step() + 1);
    all.add(p, internals.master_of(p), state.exp_avg(), state.exp_avg_sq(), state.step());
  }
  all.run(static_cast<const LambGroupOptions&>(group.options()), clips(group) ? norm_of_gradients(*this) : at::Tensor(),
          step);
}

}  // namespace bellows::optim
