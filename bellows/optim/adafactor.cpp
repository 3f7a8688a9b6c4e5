#include "bellows/optim/adafactor.h"

#include <torch/torch.h>

#include "bellows/core/error.h"
#include "bellows/optim/fused/adafactor_op.h"
#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/state/archive.h"

namespace bellows::optim {

void AdafactorGroupOptions::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(archive, *this);
}
void AdafactorGroupOptions::serialize(torch::serialize::InputArchive& archive) {
  read_fields(archive, *this);
}
void AdafactorParamState::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(archive, *this);
}
void AdafactorParamState::serialize(torch::serialize::InputArchive& archive) {
  read_fields(archive, *this);
}

std::vector<int64_t> AdafactorParamState::sizes_of(std::string_view name, const at::Tensor& p) {
  std::vector<int64_t> sizes = p.sizes().vec();
  if (p.dim() >= 2 && name == "exp_avg_sq_row") sizes.pop_back();
  if (p.dim() >= 2 && name == "exp_avg_sq_col") sizes.erase(sizes.end() - 2);
  return sizes;
}

at::ScalarType AdafactorParamState::dtype_of(const at::Tensor& p) {
  return p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

namespace {

constexpr const char* adafactor_name = "Adafactor";

void check_adafactor(const AdafactorGroupOptions& o) {
  check_option(adafactor_name, "lr", o.lr());
  check_option(adafactor_name, "eps1", std::get<0>(o.eps()));
  check_option(adafactor_name, "eps2", std::get<1>(o.eps()));
  check_option(adafactor_name, "clip_threshold", o.clip_threshold(), std::numeric_limits<double>::min());
  check_option(adafactor_name, "-decay_rate", -o.decay_rate());
  check_option(adafactor_name, "beta1", o.beta1(), 0, 1);
  check_option(adafactor_name, "weight_decay", o.weight_decay());
  TORCH_CHECK_VALUE(o.relative_step() || !o.warmup_init(), adafactor_name,
                    ": warmup_init requires relative_step. Set both or neither.");
}

AdafactorParamState& adafactor_state(torch::optim::Optimizer& optimizer, const at::Tensor& p, bool first_moment) {
  auto& slot = optimizer.state()[p.unsafeGetTensorImpl()];
  const auto type = p.options().dtype(AdafactorParamState::dtype_of(p)).requires_grad(false);
  const auto zeros = [&](const char* name) { return at::zeros(AdafactorParamState::sizes_of(name, p), type); };
  if (!slot) {
    auto fresh = std::make_unique<AdafactorParamState>();
    if (p.dim() >= 2) {
      fresh->exp_avg_sq_row(zeros("exp_avg_sq_row"));
      fresh->exp_avg_sq_col(zeros("exp_avg_sq_col"));
    } else {
      fresh->exp_avg_sq(zeros("exp_avg_sq"));
    }
    slot = std::move(fresh);
  }
  auto& state = static_cast<AdafactorParamState&>(*slot);
  if (first_moment && !state.exp_avg().defined()) state.exp_avg(zeros("exp_avg"));
  return state;
}

at::Tensor root_mean_square(const at::Tensor& t) {
  return t.norm() / std::sqrt(static_cast<double>(t.numel()));
}

/// Updates the second moment with the gradient and returns 1/√v.
at::Tensor inverse_root(AdafactorParamState& state, const kernels::AdafactorRule& rule, const at::Tensor& grad) {
  const at::Tensor squares = grad.square() + rule.eps1;
  const auto mix = [&](const at::Tensor& moment, const at::Tensor& fresh) {
    moment.mul_(rule.beta2).add_(fresh, 1 - rule.beta2);
  };
  if (state.exp_avg_sq().defined()) {
    mix(state.exp_avg_sq(), squares);
    return state.exp_avg_sq().rsqrt();
  }
  mix(state.exp_avg_sq_row(), squares.mean(-1));
  mix(state.exp_avg_sq_col(), squares.mean(-2));
  const at::Tensor row = state.exp_avg_sq_row() / state.exp_avg_sq_row().mean(-1, /*keepdim=*/true);
  return row.rsqrt().unsqueeze(-1) * state.exp_avg_sq_col().unsqueeze(-2).rsqrt();
}

/// The step of transformers for one parameter, operator by operator, on any device.
void adafactor_loop(torch::optim::Optimizer& optimizer, const at::Tensor& p, const AdafactorGroupOptions& o) {
  if (!p.grad().defined() || p.numel() == 0) return;
  AdafactorParamState& state = adafactor_state(optimizer, p, o.beta1() != 0);
  state.step(state.step() + 1);
  const kernels::AdafactorRule rule = adafactor_rule(o, static_cast<double>(state.step()));
  const at::ScalarType type = AdafactorParamState::dtype_of(p);
  const at::Tensor grad = p.grad().to(type), weight = p.detach().to(type);
  at::Tensor lr = at::scalar_tensor(rule.lr, weight.options());
  if (rule.scale_parameter) lr = lr * root_mean_square(weight).clamp_min(rule.eps2);
  at::Tensor update = inverse_root(state, rule, grad).mul_(grad);
  update.div_((root_mean_square(update) / rule.clip_threshold).clamp_min_(1.0)).mul_(lr);
  if (rule.beta1 != 0) update = state.exp_avg().mul_(rule.beta1).add_(update, 1 - rule.beta1);
  if (rule.weight_decay != 0) weight.sub_(weight * (rule.weight_decay * lr));
  weight.sub_(update);
  if (!weight.is_alias_of(p)) p.detach().copy_(weight);
}

void adafactor_group(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group) {
  const auto& o = static_cast<const AdafactorGroupOptions&>(group.options());
  for (const at::Tensor& p : group.params()) adafactor_loop(optimizer, p, o);
}

std::unique_ptr<torch::optim::Optimizer> reference_of(const AdafactorOptions& options) {
  TORCH_CHECK_VALUE(options.lr || options.relative_step, adafactor_name,
                    ": expected lr or relative_step, got neither.");
  const auto o = AdafactorGroupOptions(options.lr.value_or(1))
                     .eps({options.eps1, options.eps2})
                     .clip_threshold(options.clip_threshold)
                     .decay_rate(options.decay_rate)
                     .beta1(options.beta1)
                     .weight_decay(options.weight_decay)
                     .scale_parameter(options.scale_parameter)
                     .relative_step(options.relative_step)
                     .warmup_init(options.warmup_init);
  check_adafactor(o);
  return std::make_unique<LoopOptimizer<AdafactorGroupOptions, AdafactorParamState>>(o, adafactor_group);
}

/// One parameter in a fused step: row-major copies of tensors that are not row-major, and the results to write back.
struct AdafactorWork {
  at::Tensor original, weight, grad, low;

  AdafactorWork(const at::Tensor& p, const at::Tensor& master)
      : original(master.defined() ? master : p.detach()), weight(original.contiguous()) {
    if (master.defined()) low = p.detach();
    const at::ScalarType type = weight.scalar_type(), given = p.grad().scalar_type();
    const bool mixes = type != at::kDouble && given != at::kDouble && is_fusable(given);
    grad = p.grad().to(mixes ? given : type).contiguous();
  }
  void add_to(AdafactorTensors& all, const AdafactorParamState& state, bool first_moment) const {
    all.weights.push_back(weight);
    all.grads.push_back(grad);
    if (state.exp_avg_sq().defined()) {
      all.squares.push_back(state.exp_avg_sq());
    } else {
      all.rows.push_back(state.exp_avg_sq_row());
      all.columns.push_back(state.exp_avg_sq_col());
    }
    if (first_moment) all.firsts.push_back(state.exp_avg());
    all.steps.emplace_back(state.step());
  }
  void write_back() const {
    if (!weight.is_alias_of(original)) original.copy_(weight);
    original.unsafeGetTensorImpl()->bump_version();
    if (low.defined()) low.copy_(weight);
  }
};

}  // namespace

Adafactor::Adafactor(std::vector<at::Tensor> parameters, const AdafactorOptions& options)
    : Adafactor(one_group(std::move(parameters)), options) {}
Adafactor::Adafactor(const std::vector<PatternGroup>& groups, const AdafactorOptions& options)
    : Adafactor(with_options(groups, reference_of(options)->defaults()), options) {}
Adafactor::Adafactor(const ParamGroups& groups, const AdafactorOptions& options)
    : LibtorchOptimizer(reference_of(options), groups, options.impl, [&] {
        Common common = common_of(adafactor_name, options, /*sparse=*/false, /*aten_cuda=*/false);
        common.own_cuda = false, common.whole_parameters = true;
        return common;
      }()) {
  for (const auto& group : param_groups_) Adafactor::check(group.options());
}

void Adafactor::check(const torch::optim::OptimizerOptions& options) const {
  check_adafactor(static_cast<const AdafactorGroupOptions&>(options));
}

int64_t* Adafactor::step_count(torch::optim::OptimizerParamState& state) const {
  return &static_cast<AdafactorParamState&>(state).step();
}

void Adafactor::step_foreach(torch::optim::OptimizerParamGroup& group) {
  adafactor_group(*this, group);
}

void Adafactor::step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  const OptimizerInternals internals{*this};
  const auto& o = static_cast<const AdafactorGroupOptions&>(group.options());
  std::vector<AdafactorWork> work;
  AdafactorTensors tensors;
  work.reserve(group.params().size());
  for (const at::Tensor& p : group.params()) {
    if (!p.grad().defined() || p.numel() == 0) continue;
    AdafactorParamState& state = adafactor_state(*this, p, o.beta1() != 0);
    state.step(state.step() + 1);
    work.emplace_back(p, internals.master_of(p)).add_to(tensors, state, o.beta1() != 0);
  }
  if (step.begun) *step.begun = true;
  adafactor_on_cpu(tensors, o, step);
  for (const AdafactorWork& one : work) one.write_back();
}

}  // namespace bellows::optim
