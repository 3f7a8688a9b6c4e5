#include <torch/optim/rmsprop.h>
#include <torch/torch.h>

#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/optimizers.h"

namespace bellows::optim {

namespace {

using RmspropState = torch::optim::RMSpropParamState;

void check_rmsprop(const torch::optim::RMSpropOptions& o) {
  check_option("RMSprop", "lr", o.lr());
  check_option("RMSprop", "alpha", o.alpha());
  check_option("RMSprop", "eps", o.eps());
  check_option("RMSprop", "weight_decay", o.weight_decay());
  check_option("RMSprop", "momentum", o.momentum());
}

std::unique_ptr<torch::optim::Optimizer> reference_of(const RMSpropOptions& options) {
  const auto o = torch::optim::RMSpropOptions(options.lr)
                     .alpha(options.alpha)
                     .eps(options.eps)
                     .weight_decay(options.weight_decay)
                     .momentum(options.momentum)
                     .centered(options.centered);
  check_rmsprop(o);
  return std::make_unique<torch::optim::RMSprop>(std::vector<torch::optim::OptimizerParamGroup>{}, o);
}

RmspropState& rmsprop_state(const OptimizerInternals& internals, const at::Tensor& p,
                            const torch::optim::RMSpropOptions& o) {
  auto& state = internals.state<RmspropState>(p, [&] {
    RmspropState fresh;
    fresh.step(0);
    fresh.square_avg(internals.new_state(p));
    return fresh;
  });
  if (o.momentum() > 0 && !state.momentum_buffer().defined()) state.momentum_buffer(internals.new_state(p));
  if (o.centered() && !state.grad_avg().defined()) state.grad_avg(internals.new_state(p));
  return state;
}

struct RmspropLists {
  TensorList square_avg, momentum_buffer, grad_avg;
};

RmspropLists count_step(const OptimizerInternals& internals, const torch::optim::RMSpropOptions& o,
                        const TensorList& parameters) {
  RmspropLists lists;
  for (const at::Tensor& p : parameters) {
    RmspropState& state = rmsprop_state(internals, p, o);
    state.step(state.step() + 1);
    lists.square_avg.push_back(state.square_avg());
    lists.momentum_buffer.push_back(state.momentum_buffer());
    lists.grad_avg.push_back(state.grad_avg());
  }
  return lists;
}

}  // namespace

RMSprop::RMSprop(std::vector<at::Tensor> parameters, const RMSpropOptions& options)
    : RMSprop(one_group(std::move(parameters)), options) {}
RMSprop::RMSprop(const std::vector<PatternGroup>& groups, const RMSpropOptions& options)
    : RMSprop(with_options(groups, reference_of(options)->defaults()), options) {}
RMSprop::RMSprop(const ParamGroups& groups, const RMSpropOptions& options)
    : LibtorchOptimizer(reference_of(options), groups, options.impl,
                        common_of("RMSprop", options, /*sparse=*/false, /*aten_cuda=*/false)) {
  for (const auto& group : param_groups_)
    check_rmsprop(static_cast<const torch::optim::RMSpropOptions&>(group.options()));
}

void RMSprop::check(const torch::optim::OptimizerOptions& options) const {
  check_rmsprop(static_cast<const torch::optim::RMSpropOptions&>(options));
}

int64_t* RMSprop::step_count(torch::optim::OptimizerParamState& state) const {
  return &static_cast<RmspropState&>(state).step();
}

void RMSprop::step_foreach(torch::optim::OptimizerParamGroup& group) {
  const auto& o = static_cast<const torch::optim::RMSpropOptions&>(group.options());
  for_each_list(group.params(), [&](const TensorList& parameters) {
    TensorList grads = gradients_of(parameters);
    if (o.weight_decay() != 0) grads = at::_foreach_add(grads, parameters, o.weight_decay());
    RmspropLists lists = count_step({*this}, o, parameters);
    at::_foreach_mul_(lists.square_avg, o.alpha());
    at::_foreach_addcmul_(lists.square_avg, grads, grads, 1 - o.alpha());
    TensorList roots;
    if (o.centered()) {
      at::_foreach_mul_(lists.grad_avg, o.alpha());
      at::_foreach_add_(lists.grad_avg, grads, 1 - o.alpha());
      roots = at::_foreach_addcmul(lists.square_avg, lists.grad_avg, lists.grad_avg, -1);
      at::_foreach_sqrt_(roots);
    } else {
      roots = at::_foreach_sqrt(lists.square_avg);
    }
    at::_foreach_add_(roots, o.eps());
    if (o.momentum() > 0) {
      at::_foreach_mul_(lists.momentum_buffer, o.momentum());
      at::_foreach_addcdiv_(lists.momentum_buffer, grads, roots);
      at::_foreach_add_(parameters, lists.momentum_buffer, -o.lr());
    } else {
      at::_foreach_addcdiv_(parameters, grads, roots, -o.lr());
    }
  });
}

void RMSprop::step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  const OptimizerInternals internals{*this};
  const auto& o = static_cast<const torch::optim::RMSpropOptions&>(group.options());
  const kernels::RmspropRule rule{.lr = o.lr(),
                                  .alpha = o.alpha(),
                                  .eps = o.eps(),
                                  .weight_decay = o.weight_decay(),
                                  .momentum = o.momentum(),
                                  .centered = o.centered()};
  std::vector<FusedTensor<kernels::RmspropRule>> tensors;
  for (const at::Tensor& p : group.params()) {
    if (!p.grad().defined()) continue;
    RmspropState& state = rmsprop_state(internals, p, o);
    auto& t = tensors.emplace_back(internals.fused(p, rule));
    t.step = internals.device_step(p, state.step());
    state.step(state.step() + 1);
    size_t used = 0;
    t.state[used++] = state.square_avg();
    if (o.momentum() > 0) t.state[used++] = state.momentum_buffer();
    if (o.centered()) t.state[used] = state.grad_avg();
  }
  run_fused(std::move(tensors), step);
}

}  // namespace bellows::optim
