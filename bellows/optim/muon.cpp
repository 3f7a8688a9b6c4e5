#include "bellows/optim/muon.h"

#include <fnmatch.h>
#include <torch/torch.h>

#include "bellows/core/error.h"
#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/state/archive.h"

namespace bellows::optim {

void MuonGroupOptions::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(archive, *this);
}
void MuonGroupOptions::serialize(torch::serialize::InputArchive& archive) {
  read_fields(archive, *this);
}
void MuonParamState::serialize(torch::serialize::OutputArchive& archive) const {
  write_fields(archive, *this);
}
void MuonParamState::serialize(torch::serialize::InputArchive& archive) {
  read_fields(archive, *this);
}

at::Tensor newton_schulz(const at::Tensor& matrix, const MuonGroupOptions& o, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(matrix.dim() == 2, "newton_schulz: expected a matrix, got a tensor of shape ", matrix.sizes(), ".");
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(dtype);
  if (tall) x = x.t();
  x = x / x.norm().clamp_min(o.eps());  // the spectral norm is at most 1
  for (int64_t step = 0; step < o.ns_steps(); ++step) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, o.ns_b(), o.ns_c()), x, o.ns_a());
  }
  return tall ? x.t() : x;
}

namespace {

constexpr const char* muon_name = "Muon";

void check_muon(const MuonGroupOptions& o) {
  check_option(muon_name, "lr", o.lr());
  check_option(muon_name, "weight_decay", o.weight_decay());
  check_option(muon_name, "momentum", o.momentum());
  check_option(muon_name, "eps", o.eps());
  check_option(muon_name, "ns_steps", static_cast<double>(o.ns_steps()), 0, 100);
  check_option(muon_name, "adamw_lr_factor", o.adamw_lr_factor());
  check_option(muon_name, "adamw_beta1", std::get<0>(o.betas()), 0, 1);
  check_option(muon_name, "adamw_beta2", std::get<1>(o.betas()), 0, 1);
  check_option(muon_name, "adamw_eps", o.adamw_eps());
}

MuonGroupOptions group_options_of(const MuonOptions& options) {
  return MuonGroupOptions(options.lr)
      .weight_decay(options.weight_decay)
      .momentum(options.momentum)
      .nesterov(options.nesterov)
      .eps(options.eps)
      .ns_steps(options.ns_steps)
      .ns_a(options.ns_a)
      .ns_b(options.ns_b)
      .ns_c(options.ns_c)
      .match_rms_adamw(options.adjust_lr_fn == MuonRate::match_rms_adamw)
      .adamw_lr_factor(options.adamw_lr_factor)
      .betas({options.adamw_beta1, options.adamw_beta2})
      .adamw_eps(options.adamw_eps);
}

bool uses_adamw(const MuonGroupOptions& o, const at::Tensor& p) {
  return o.adamw() || p.dim() != 2 || p.numel() == 0;
}

/// Params: create – returns a new tensor of state, filled with 0
template <class Create>
MuonParamState& muon_state(torch::optim::Optimizer& optimizer, const at::Tensor& p, bool adamw, Create create) {
  auto& slot = optimizer.state()[p.unsafeGetTensorImpl()];
  if (!slot) slot = std::make_unique<MuonParamState>();
  auto& state = static_cast<MuonParamState&>(*slot);
  for (at::Tensor* const tensor : {&state.momentum_buffer(), &state.exp_avg(), &state.exp_avg_sq()}) {
    if (adamw != (tensor == &state.momentum_buffer()) && !tensor->defined()) *tensor = create();
  }
  state.step(state.step() + 1);
  return state;
}

/// The step of Muon for a matrix.
/// Params: weight – the parameter, or its master weight
void step_matrix(MuonParamState& state, const at::Tensor& weight, const at::Tensor& grad, const MuonGroupOptions& o,
                 at::ScalarType ns_dtype) {
  at::Tensor& buffer = state.momentum_buffer();
  buffer.lerp_(grad, 1 - o.momentum());
  const at::Tensor update = newton_schulz(o.nesterov() ? grad.lerp(buffer, o.momentum()) : buffer, o, ns_dtype);
  const auto rows = static_cast<double>(weight.size(0)), columns = static_cast<double>(weight.size(1));
  const double ratio =
      o.match_rms_adamw() ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
  weight.mul_(1 - o.lr() * o.weight_decay());
  weight.sub_(update, o.lr() * ratio);
}

kernels::AdamRule adamw_rule(const MuonGroupOptions& o, int64_t step) {
  return {.lr = o.lr() * o.adamw_lr_factor(),
          .beta1 = std::get<0>(o.betas()),
          .beta2 = std::get<1>(o.betas()),
          .eps = o.adamw_eps(),
          .weight_decay = o.weight_decay(),
          .step = static_cast<double>(step),
          .decoupled = true};
}

/// The step of AdamW for one parameter, operator by operator.
void step_adamw(MuonParamState& state, const at::Tensor& p, const MuonGroupOptions& o) {
  const auto [beta1, beta2] = o.betas();
  const double lr = o.lr() * o.adamw_lr_factor(), step = static_cast<double>(state.step());
  p.mul_(1 - lr * o.weight_decay());
  state.exp_avg().mul_(beta1).add_(p.grad(), 1 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(p.grad(), p.grad(), 1 - beta2);
  const at::Tensor root = state.exp_avg_sq().sqrt().div_(std::sqrt(1 - std::pow(beta2, step))).add_(o.adamw_eps());
  p.addcdiv_(state.exp_avg(), root, -lr / (1 - std::pow(beta1, step)));
}

/// The dtype of the Newton–Schulz iteration of an optimizer's loop is that of its owner.
class MuonLoop : public LoopOptimizer<MuonGroupOptions, MuonParamState> {
 public:
  MuonLoop(const MuonGroupOptions& options, at::ScalarType ns_dtype)
      : LoopOptimizer(options, nullptr), ns_dtype_(ns_dtype) {}
  at::Tensor step(LossClosure) override {
    for (torch::optim::OptimizerParamGroup& group : param_groups_) step_group(*this, group, ns_dtype_);
    return {};
  }
  static void step_group(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group,
                         at::ScalarType ns_dtype) {
    const auto& o = static_cast<const MuonGroupOptions&>(group.options());
    for (const at::Tensor& p : group.params()) {
      if (!p.grad().defined()) continue;
      const bool adamw = uses_adamw(o, p);
      MuonParamState& state = muon_state(optimizer, p, adamw, [&] { return at::zeros_like(p.detach()); });
      adamw ? step_adamw(state, p, o) : step_matrix(state, p, p.grad(), o, ns_dtype);
    }
  }

 private:
  at::ScalarType ns_dtype_;
};

std::unique_ptr<torch::optim::Optimizer> reference_of(const MuonOptions& options) {
  const MuonGroupOptions o = group_options_of(options);
  check_muon(o);
  TORCH_CHECK_VALUE(at::isFloatingType(options.ns_dtype), muon_name,
                    ": expected a floating-point dtype as ns_dtype, got ", options.ns_dtype, ".");
  return std::make_unique<MuonLoop>(o, options.ns_dtype);
}

}  // namespace

LibtorchOptimizer::ParamGroups muon_groups(const Model& model, const std::vector<std::string>& adamw_patterns,
                                           const MuonOptions& options) {
  std::array<std::vector<at::Tensor>, 2> parameters;
  for (const auto& [name, p] : model.named_parameters()) {
    const bool listed = std::any_of(adamw_patterns.begin(), adamw_patterns.end(), [&](const std::string& pattern) {
      return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    });
    parameters[static_cast<size_t>(listed || p.dim() != 2)].push_back(p);
  }
  LibtorchOptimizer::ParamGroups groups;
  for (const bool adamw : {false, true}) {
    auto& own = parameters[static_cast<size_t>(adamw)];
    if (own.empty()) continue;
    groups.emplace_back(std::move(own), std::make_unique<MuonGroupOptions>(group_options_of(options).adamw(adamw)));
  }
  return groups;
}

Muon::Muon(std::vector<at::Tensor> parameters, const MuonOptions& options)
    : Muon(one_group(std::move(parameters)), options) {}
Muon::Muon(const std::vector<PatternGroup>& groups, const MuonOptions& options)
    : Muon(with_options(groups, reference_of(options)->defaults()), options) {}
Muon::Muon(const ParamGroups& groups, const MuonOptions& options)
    : LibtorchOptimizer(reference_of(options), groups, options.impl,
                        [&] {
                          Common common = common_of(muon_name, options, /*sparse=*/false, /*aten_cuda=*/true);
                          common.whole_parameters = true;
                          return common;
                        }()),
      ns_dtype_(options.ns_dtype) {
  for (const auto& group : param_groups_) Muon::check(group.options());
}

void Muon::check(const torch::optim::OptimizerOptions& options) const {
  check_muon(static_cast<const MuonGroupOptions&>(options));
}

int64_t* Muon::step_count(torch::optim::OptimizerParamState& state) const {
  return &static_cast<MuonParamState&>(state).step();
}

void Muon::step_foreach(torch::optim::OptimizerParamGroup& group) {
  MuonLoop::step_group(*this, group, ns_dtype_);
}

void Muon::step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  const OptimizerInternals internals{*this};
  const auto& o = static_cast<const MuonGroupOptions&>(group.options());
  TORCH_CHECK_VALUE(!step.late.grad_scale.defined() && !step.late.found_inf.defined() && !step.grad_scale.defined() &&
                        !step.found_inf.defined(),
                    "Muon::step: expected unscaled gradients. Call unscale_() first.");
  std::vector<FusedTensor<kernels::AdamRule>> adamw;
  std::vector<std::pair<at::Tensor, MuonParamState*>> matrices;
  for (const at::Tensor& p : group.params()) {
    if (!p.grad().defined()) continue;
    const bool is_adamw = uses_adamw(o, p);
    MuonParamState& state = muon_state(*this, p, is_adamw, [&] { return internals.new_state(p); });
    if (!is_adamw) {
      matrices.emplace_back(p, &state);
      continue;
    }
    auto& t = adamw.emplace_back(internals.fused(p, adamw_rule(o, state.step())));
    t.step = internals.device_step(p, state.step() - 1);
    t.state = {state.exp_avg(), state.exp_avg_sq(), at::Tensor()};
  }
  if (step.begun) *step.begun = true;
  for (const auto& [p, state] : matrices) {
    const at::Tensor master = internals.master_of(p), weight = master.defined() ? master : p.detach();
    const at::Tensor grad = p.grad().to(weight.scalar_type());
    step_matrix(*state, weight, step.maximize ? grad.neg() : grad, o, ns_dtype_);
    if (master.defined()) p.detach().copy_(master);
  }
  run_fused(std::move(adamw), step);
}

}  // namespace bellows::optim
