#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/torch.h>

#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/optimizers.h"

// Adam and AdamW are two classes in libtorch, but share one rule here.
namespace bellows::optim {

namespace {

struct AdamKind {
  static constexpr const char* name = "Adam";
  static constexpr bool decoupled = false;
  using Optimizer = torch::optim::Adam;
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
};

struct AdamWKind {
  static constexpr const char* name = "AdamW";
  static constexpr bool decoupled = true;
  using Optimizer = torch::optim::AdamW;
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
};

template <class Kind>
void check_adam(const torch::optim::OptimizerOptions& options, bool low_bit = false) {
  const auto& o = static_cast<const typename Kind::Options&>(options);
  check_option(Kind::name, "lr", o.lr());
  check_option(Kind::name, "beta1", std::get<0>(o.betas()), 0, 1);
  check_option(Kind::name, "beta2", std::get<1>(o.betas()), 0, 1);
  check_option(Kind::name, "eps", o.eps());
  check_option(Kind::name, "weight_decay", o.weight_decay());
  TORCH_CHECK_VALUE(!low_bit || !o.amsgrad(), Kind::name,
                    ": amsgrad is not supported with low-bit state. Leave out amsgrad or state_dtype.");
}

template <class Kind, class Options>
std::unique_ptr<torch::optim::Optimizer> reference_of_adam(const Options& options) {
  const auto o = typename Kind::Options(options.lr)
                     .betas({options.beta1, options.beta2})
                     .eps(options.eps)
                     .weight_decay(options.weight_decay)
                     .amsgrad(options.amsgrad);
  check_adam<Kind>(o);
  return std::make_unique<typename Kind::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>{}, o);
}

template <class Kind>
typename Kind::State& adam_state(const OptimizerInternals& internals, const at::Tensor& p, bool amsgrad) {
  auto& state = internals.state<typename Kind::State>(p, [&] {
    typename Kind::State fresh;
    fresh.step(0);
    fresh.exp_avg(internals.new_state(p));
    fresh.exp_avg_sq(internals.new_state(p));
    return fresh;
  });
  if (amsgrad && !state.max_exp_avg_sq().defined()) state.max_exp_avg_sq(internals.new_state(p));
  return state;
}

/// States of several parameters as lists, with the scalars that depend on each parameter's step count.
struct AdamLists {
  TensorList exp_avg, exp_avg_sq, max_exp_avg_sq;
  std::vector<at::Scalar> denominator_scale, step_size;
};

template <class Kind>
AdamLists count_step(const OptimizerInternals& internals, const typename Kind::Options& options,
                     const TensorList& parameters) {
  const auto [beta1, beta2] = options.betas();
  AdamLists lists;
  for (const at::Tensor& p : parameters) {
    auto& state = adam_state<Kind>(internals, p, options.amsgrad());
    state.step(state.step() + 1);
    const auto step = static_cast<double>(state.step());
    lists.exp_avg.push_back(state.exp_avg());
    lists.exp_avg_sq.push_back(state.exp_avg_sq());
    if (options.amsgrad()) lists.max_exp_avg_sq.push_back(state.max_exp_avg_sq());
    lists.denominator_scale.emplace_back(std::sqrt(1 - std::pow(beta2, step)));
    lists.step_size.emplace_back(-(options.lr() / (1 - std::pow(beta1, step))));
  }
  return lists;
}

template <class Kind>
void adam_foreach(const OptimizerInternals& internals, torch::optim::OptimizerParamGroup& group) {
  const auto& options = static_cast<const typename Kind::Options&>(group.options());
  const auto [beta1, beta2] = options.betas();
  for_each_list(group.params(), [&, beta1 = beta1, beta2 = beta2](const TensorList& parameters) {
    TensorList grads = gradients_of(parameters);
    if (options.weight_decay() != 0) {
      if constexpr (Kind::decoupled) {
        at::_foreach_mul_(parameters, 1 - options.lr() * options.weight_decay());
      } else {
        grads = at::_foreach_add(grads, parameters, options.weight_decay());
      }
    }
    AdamLists lists = count_step<Kind>(internals, options, parameters);
    at::_foreach_mul_(lists.exp_avg, beta1);
    at::_foreach_add_(lists.exp_avg, grads, 1 - beta1);
    at::_foreach_mul_(lists.exp_avg_sq, beta2);
    at::_foreach_addcmul_(lists.exp_avg_sq, grads, grads, 1 - beta2);
    if (options.amsgrad()) at::_foreach_maximum_(lists.max_exp_avg_sq, lists.exp_avg_sq);
    const TensorList denominators = at::_foreach_sqrt(options.amsgrad() ? lists.max_exp_avg_sq : lists.exp_avg_sq);
    at::_foreach_div_(denominators, lists.denominator_scale);
    at::_foreach_add_(denominators, options.eps());
    at::_foreach_addcdiv_(parameters, lists.exp_avg, denominators, lists.step_size);
  });
}

template <class Kind>
void adam_fused(const OptimizerInternals& internals, torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  const auto& o = static_cast<const typename Kind::Options&>(group.options());
  std::vector<FusedTensor<kernels::AdamRule>> tensors;
  for (const at::Tensor& p : group.params()) {
    if (!p.grad().defined()) continue;
    auto& state = adam_state<Kind>(internals, p, o.amsgrad());
    const kernels::AdamRule rule{.lr = o.lr(),
                                 .beta1 = std::get<0>(o.betas()),
                                 .beta2 = std::get<1>(o.betas()),
                                 .eps = o.eps(),
                                 .weight_decay = o.weight_decay(),
                                 .step = static_cast<double>(state.step() + 1),
                                 .decoupled = Kind::decoupled,
                                 .amsgrad = o.amsgrad()};
    auto& t = tensors.emplace_back(internals.fused(p, rule));
    t.step = internals.device_step(p, state.step());
    t.state = {state.exp_avg(), state.exp_avg_sq(), o.amsgrad() ? state.max_exp_avg_sq() : at::Tensor()};
    state.step(state.step() + 1);
  }
  run_fused(std::move(tensors), step);
}

}  // namespace

Adam::Adam(std::vector<at::Tensor> parameters, const AdamOptions& options)
    : Adam(one_group(std::move(parameters)), options) {}
Adam::Adam(const std::vector<PatternGroup>& groups, const AdamOptions& options)
    : Adam(with_options(groups, reference_of_adam<AdamKind>(options)->defaults()), options) {}
Adam::Adam(const ParamGroups& groups, const AdamOptions& options)
    : LibtorchOptimizer(reference_of_adam<AdamKind>(options), groups, options.impl,
                        common_of("Adam", options, /*sparse=*/false, /*aten_cuda=*/true)) {
  for (const auto& group : param_groups_) Adam::check(group.options());
}
void Adam::check(const torch::optim::OptimizerOptions& options) const {
  check_adam<AdamKind>(options, has_low_bit_state());
}
void Adam::step_foreach(torch::optim::OptimizerParamGroup& group) {
  adam_foreach<AdamKind>({*this}, group);
}
void Adam::step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  adam_fused<AdamKind>({*this}, group, step);
}
int64_t* Adam::step_count(torch::optim::OptimizerParamState& state) const {
  return &static_cast<AdamKind::State&>(state).step();
}

AdamW::AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options)
    : AdamW(one_group(std::move(parameters)), options) {}
AdamW::AdamW(const std::vector<PatternGroup>& groups, const AdamWOptions& options)
    : AdamW(with_options(groups, reference_of_adam<AdamWKind>(options)->defaults()), options) {}
AdamW::AdamW(const ParamGroups& groups, const AdamWOptions& options)
    : LibtorchOptimizer(reference_of_adam<AdamWKind>(options), groups, options.impl,
                        common_of("AdamW", options, /*sparse=*/false, /*aten_cuda=*/true)) {
  for (const auto& group : param_groups_) AdamW::check(group.options());
}
void AdamW::check(const torch::optim::OptimizerOptions& options) const {
  check_adam<AdamWKind>(options, has_low_bit_state());
}
void AdamW::step_foreach(torch::optim::OptimizerParamGroup& group) {
  adam_foreach<AdamWKind>({*this}, group);
}
void AdamW::step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  adam_fused<AdamWKind>({*this}, group, step);
}
int64_t* AdamW::step_count(torch::optim::OptimizerParamState& state) const {
  return &static_cast<AdamWKind::State&>(state).step();
}

}  // namespace bellows::optim
