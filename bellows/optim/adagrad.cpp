#include <torch/optim/adagrad.h>
#include <torch/torch.h>

#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/optimizers.h"

namespace bellows::optim {

namespace {

using AdagradState = torch::optim::AdagradParamState;

void check_adagrad(const torch::optim::AdagradOptions& o) {
  check_option("Adagrad", "lr", o.lr());
  check_option("Adagrad", "lr_decay", o.lr_decay());
  check_option("Adagrad", "weight_decay", o.weight_decay());
  check_option("Adagrad", "initial_accumulator_value", o.initial_accumulator_value());
  check_option("Adagrad", "eps", o.eps());
}

std::unique_ptr<torch::optim::Optimizer> reference_of(const AdagradOptions& options) {
  const auto o = torch::optim::AdagradOptions(options.lr)
                     .lr_decay(options.lr_decay)
                     .weight_decay(options.weight_decay)
                     .initial_accumulator_value(options.initial_accumulator_value)
                     .eps(options.eps);
  check_adagrad(o);
  return std::make_unique<torch::optim::Adagrad>(std::vector<torch::optim::OptimizerParamGroup>{}, o);
}

AdagradState& adagrad_state(const OptimizerInternals& internals, const at::Tensor& p,
                            const torch::optim::AdagradOptions& o) {
  return internals.state<AdagradState>(p, [&] {
    AdagradState fresh;
    fresh.step(0);
    fresh.sum(internals.new_state(p, o.initial_accumulator_value()));
    return fresh;
  });
}

double decayed_lr(const torch::optim::AdagradOptions& o, int64_t step) {
  return o.lr() / (1 + static_cast<double>(step - 1) * o.lr_decay());
}

}  // namespace

Adagrad::Adagrad(std::vector<at::Tensor> parameters, const AdagradOptions& options)
    : Adagrad(one_group(std::move(parameters)), options) {}
Adagrad::Adagrad(const std::vector<PatternGroup>& groups, const AdagradOptions& options)
    : Adagrad(with_options(groups, reference_of(options)->defaults()), options) {}
Adagrad::Adagrad(const ParamGroups& groups, const AdagradOptions& options)
    : LibtorchOptimizer(reference_of(options), groups, options.impl,
                        common_of("Adagrad", options, /*sparse=*/true, /*aten_cuda=*/false)) {
  for (const auto& group : param_groups_)
    check_adagrad(static_cast<const torch::optim::AdagradOptions&>(group.options()));
  Adagrad::before_loop();  // creates the state at construction, as Python does
}

void Adagrad::check(const torch::optim::OptimizerOptions& options) const {
  check_adagrad(static_cast<const torch::optim::AdagradOptions&>(options));
}

int64_t* Adagrad::step_count(torch::optim::OptimizerParamState& state) const {
  return &static_cast<AdagradState&>(state).step();
}

void Adagrad::before_loop() {
  for (auto& group : param_groups_) {
    const auto& o = static_cast<const torch::optim::AdagradOptions&>(group.options());
    for (const at::Tensor& p : group.params()) adagrad_state({*this}, p, o);
  }
}

void Adagrad::step_foreach(torch::optim::OptimizerParamGroup& group) {
  const auto& o = static_cast<const torch::optim::AdagradOptions&>(group.options());
  for_each_list(group.params(), [&](const TensorList& parameters) {
    TensorList grads = gradients_of(parameters), sums;
    if (o.weight_decay() != 0) grads = at::_foreach_add(grads, parameters, o.weight_decay());
    std::vector<at::Scalar> rates;
    for (const at::Tensor& p : parameters) {
      AdagradState& state = adagrad_state({*this}, p, o);
      state.step(state.step() + 1);
      sums.push_back(state.sum());
      rates.emplace_back(-decayed_lr(o, state.step()));
    }
    at::_foreach_addcmul_(sums, grads, grads, 1.0);
    const TensorList roots = at::_foreach_sqrt(sums);
    at::_foreach_add_(roots, o.eps());
    at::_foreach_addcdiv_(parameters, grads, roots, rates);
  });
}

void Adagrad::step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  const OptimizerInternals internals{*this};
  const auto& o = static_cast<const torch::optim::AdagradOptions&>(group.options());
  std::vector<FusedTensor<kernels::AdagradRule>> tensors;
  for (const at::Tensor& p : group.params()) {
    if (!p.grad().defined()) continue;
    AdagradState& state = adagrad_state(internals, p, o);
    const kernels::AdagradRule rule{.lr = o.lr(),
                                    .lr_decay = o.lr_decay(),
                                    .eps = o.eps(),
                                    .weight_decay = o.weight_decay(),
                                    .step = static_cast<double>(state.step() + 1)};
    auto& t = tensors.emplace_back(internals.fused(p, rule));
    t.step = internals.device_step(p, state.step());
    t.state[0] = state.sum();
    state.step(state.step() + 1);
  }
  run_fused(std::move(tensors), step);
}

}  // namespace bellows::optim
