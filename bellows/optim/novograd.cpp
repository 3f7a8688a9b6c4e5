#include "bellows/optim/novograd.h"

#include <torch/torch.h>

#include "bellows/optim/fused/layerwise_op.h"
#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/state/archive.h"

namespace bellows::optim {

void NovoGradGroupOptions::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(archive, *this);
}
void NovoGradGroupOptions::serialize(torch::serialize::InputArchive& archive) {
  read_fields(archive, *this);
}
void NovoGradParamState::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(archive, *this);
}
void NovoGradParamState::serialize(torch::serialize::InputArchive& archive) {
  read_fields(archive, *this);
}

std::vector<int64_t> NovoGradParamState::sizes_of(std::string_view name, const at::Tensor& p) {
  return name == "grad_norm" ? std::vector<int64_t>() : p.sizes().vec();
}

at::ScalarType NovoGradParamState::dtype_of(const at::Tensor& p) {
  return p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

namespace {

constexpr const char* novograd_name = "NovoGrad";

void check_novograd(const NovoGradGroupOptions& o) {
  check_option(novograd_name, "lr", o.lr());
  check_option(novograd_name, "beta1", std::get<0>(o.betas()), 0, 1);
  check_option(novograd_name, "beta2", std::get<1>(o.betas()), 0, 1);
  check_option(novograd_name, "eps", o.eps());
  check_option(novograd_name, "weight_decay", o.weight_decay());
}

NovoGradParamState& novograd_state(torch::optim::Optimizer& optimizer, const at::Tensor& p) {
  auto& slot = optimizer.state()[p.unsafeGetTensorImpl()];
  if (!slot) {
    auto fresh = std::make_unique<NovoGradParamState>();
    const auto type = p.options().dtype(NovoGradParamState::dtype_of(p)).requires_grad(false);
    fresh->exp_avg(at::zeros_like(p.detach(), type, at::MemoryFormat::Preserve));
    fresh->grad_norm(at::zeros({}, type));
    slot = std::move(fresh);
  }
  return static_cast<NovoGradParamState&>(*slot);
}

/// The step for one parameter, operator by operator, on any device.
void novograd_loop(torch::optim::Optimizer& optimizer, const at::Tensor& p, const NovoGradGroupOptions& o) {
  if (!p.grad().defined() || p.numel() == 0) return;
  NovoGradParamState& state = novograd_state(optimizer, p);
  state.step(state.step() + 1);
  const kernels::NovogradRule rule = layerwise_rule(o, static_cast<double>(state.step()));
  const at::ScalarType type = NovoGradParamState::dtype_of(p);
  const at::Tensor grad = p.grad().to(type), weight = p.detach().to(type);
  const at::Tensor now = rule.max_norm ? grad.abs().max() : grad.norm();
  at::Tensor& norm = state.grad_norm();
  if (rule.first) norm.copy_(now);
  if (rule.max_norm) {
    norm.mul_(rule.beta2).add_(now, 1 - rule.beta2);
  } else {
    norm.square_().mul_(rule.beta2).addcmul_(now, now, 1 - rule.beta2).sqrt_();
  }
  const at::Tensor divisor = norm / rule.correction2 + rule.eps;
  at::Tensor fresh = grad;
  if (rule.inside_moment) fresh = (grad / divisor).add_(weight, rule.weight_decay);
  state.exp_avg().mul_(rule.beta1).add_(fresh, rule.new1);
  at::Tensor update = state.exp_avg() / rule.correction1;
  if (!rule.inside_moment) update.div_(divisor).add_(weight, rule.weight_decay);
  weight.sub_(update, rule.lr);
  if (!weight.is_alias_of(p)) p.detach().copy_(weight);
}

void novograd_group(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group) {
  const auto& o = static_cast<const NovoGradGroupOptions&>(group.options());
  for (const at::Tensor& p : group.params()) novograd_loop(optimizer, p, o);
}

std::unique_ptr<torch::optim::Optimizer> reference_of(const NovoGradOptions& options) {
  const auto o = NovoGradGroupOptions(options.lr)
                     .betas({options.beta1, options.beta2})
                     .eps(options.eps)
                     .weight_decay(options.weight_decay)
                     .bias_correction(options.bias_correction)
                     .grad_averaging(options.grad_averaging)
                     .init_zero(options.init_zero)
                     .reg_inside_moment(options.reg_inside_moment)
                     .max_norm(options.max_norm);
  check_novograd(o);
  return std::make_unique<LoopOptimizer<NovoGradGroupOptions, NovoGradParamState>>(o, novograd_group);
}

}  // namespace

NovoGrad::NovoGrad(std::vector<at::Tensor> parameters, const NovoGradOptions& options)
    : NovoGrad(one_group(std::move(parameters)), options) {}
NovoGrad::NovoGrad(const std::vector<PatternGroup>& groups, const NovoGradOptions& options)
    : NovoGrad(with_options(groups, reference_of(options)->defaults()), options) {}
NovoGrad::NovoGrad(const ParamGroups& groups, const NovoGradOptions& options)
    : LibtorchOptimizer(reference_of(options), groups, options.impl, [&] {
        Common common = common_of(novograd_name, options, /*sparse=*/false, /*aten_cuda=*/false);
        common.own_cuda = false, common.whole_parameters = true;
        return common;
      }()) {
  for (const auto& group : param_groups_) NovoGrad::check(group.options());
}

void NovoGrad::check(const torch::optim::OptimizerOptions& options) const {
  check_novograd(static_cast<const NovoGradGroupOptions&>(options));
}

int64_t* NovoGrad::step_count(torch::optim::OptimizerParamState& state) const {
  return &static_cast<NovoGradParamState&>(state).step();
}

void NovoGrad::step_foreach(torch::optim::OptimizerParamGroup& group) {
  novograd_group(*this, group);
}

void NovoGrad::step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  const OptimizerInternals internals{*this};
  LayerwiseStep all(/*seconds_like_weight=*/false);
  for (const at::Tensor& p : group.params()) {
    if (!p.grad().defined() || p.numel() == 0) continue;
    NovoGradParamState& state = novograd_state(*this, p);
    state.step(state.step() + 1);
    all.add(p, internals.master_of(p), state.exp_avg(), state.grad_norm(), state.step());
  }
  all.run(static_cast<const NovoGradGroupOptions&>(group.options()), step);
}

}  // namespace bellows::optim
