#include "bellows/optim/optimizers.h"

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

#include "bellows/core/error.h"

namespace bellows::optim {

namespace {

using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;

/// Lends parameter groups and state to libtorch's own optimizer for one call.
class Lend {
 public:
  Lend(torch::optim::Optimizer& from, torch::optim::Optimizer& to) : from_(from), to_(to) { exchange(); }
  ~Lend() { exchange(); }
  Lend(const Lend&) = delete;
  Lend& operator=(const Lend&) = delete;

 private:
  void exchange() {
    std::swap(from_.param_groups(), to_.param_groups());
    std::swap(from_.state(), to_.state());
  }
  torch::optim::Optimizer &from_, &to_;
};

std::vector<OptimizerParamGroup> one_group(Tensors parameters) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::move(parameters));
  return groups;
}

void check_groups(const torch::optim::Optimizer& optimizer) {
  size_t parameters = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    TORCH_CHECK_VALUE(
        typeid(group.options()) == typeid(optimizer.defaults()),
        "optim: a parameter group has options of another optimizer's class. Give it options of libtorch's "
        "optimizer of the same name, or none.");
    parameters += group.params().size();
  }
  TORCH_CHECK_VALUE(parameters > 0, "optim: expected parameters to optimize, got none. Is the model empty?");
}

bool any_sparse_gradient(const std::vector<OptimizerParamGroup>& groups) {
  for (const OptimizerParamGroup& group : groups) {
    for (const at::Tensor& p : group.params()) {
      if (p.grad().defined() && p.grad().layout() != at::kStrided) return true;
    }
  }
  return false;
}

/// Calls `step(parameters)` with those that have a gradient: on an accelerator all at once; on the CPU in runs whose
/// parameters, gradients and state stay in the cache from one operator to the next.
template <class Step>
void for_each_list(const Tensors& parameters, Step step) {
  constexpr size_t list_bytes = 256 << 10;
  Tensors list;
  size_t bytes = 0;
  for (const at::Tensor& p : parameters) {
    if (!p.grad().defined()) continue;
    if (!list.empty() && p.is_cpu() && bytes + p.nbytes() > list_bytes) {
      step(list);
      list.clear();
      bytes = 0;
    }
    list.push_back(p);
    bytes += p.nbytes();
  }
  if (!list.empty()) step(list);
}

Tensors gradients(const Tensors& parameters) {
  Tensors result;
  result.reserve(parameters.size());
  for (const at::Tensor& p : parameters) result.push_back(p.grad());
  return result;
}

template <class State>
State* find_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : static_cast<State*>(found->second.get());
}

}  // namespace

LibtorchOptimizer::LibtorchOptimizer(std::unique_ptr<torch::optim::Optimizer> reference, const ParamGroups& groups,
                                     Impl impl)
    : Optimizer(groups, reference->defaults().clone()), reference_(std::move(reference)), impl_(impl) {
  check_groups(*this);
}

at::Tensor LibtorchOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const c10::NoGradGuard no_grad;
  if (impl_ == Impl::loop || any_sparse_gradient(param_groups_)) {
    const Lend lend(*this, *reference_);
    reference_->step();
  } else {
    for (OptimizerParamGroup& group : param_groups_) step_foreach(group);
  }
  return loss;
}

void LibtorchOptimizer::save(torch::serialize::OutputArchive& archive) const {
  // Lending leaves this object as it was.
  const Lend lend(const_cast<LibtorchOptimizer&>(*this), *reference_);
  reference_->save(archive);
}

void LibtorchOptimizer::load(torch::serialize::InputArchive& archive) {
  const Lend lend(*this, *reference_);
  reference_->load(archive);
}

// --- SGD

namespace {

std::unique_ptr<torch::optim::Optimizer> reference_of(const SGDOptions& options) {
  return std::make_unique<torch::optim::SGD>(std::vector<OptimizerParamGroup>{}, torch::optim::SGDOptions(options.lr)
                                                                                     .momentum(options.momentum)
                                                                                     .dampening(options.dampening)
                                                                                     .weight_decay(options.weight_decay)
                                                                                     .nesterov(options.nesterov));
}

/// Brings the momentum buffers of `parameters` up to date and returns them.
Tensors update_momentum(torch::optim::Optimizer& optimizer, const torch::optim::SGDOptions& options,
                        const Tensors& parameters, const Tensors& directions) {
  using State = torch::optim::SGDParamState;
  Tensors all, old_buffers, old_directions;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (State* state = find_state<State>(optimizer, parameters[i])) {
      all.push_back(state->momentum_buffer());
      old_buffers.push_back(all.back());
      old_directions.push_back(directions[i]);
    } else {
      all.push_back(directions[i].clone());
      auto fresh = std::make_unique<State>();
      fresh->momentum_buffer(all.back());
      optimizer.state()[parameters[i].unsafeGetTensorImpl()] = std::move(fresh);
    }
  }
  if (!old_buffers.empty()) {
    at::_foreach_mul_(old_buffers, options.momentum());
    at::_foreach_add_(old_buffers, old_directions, 1 - options.dampening());
  }
  return all;
}

}  // namespace

SGD::SGD(std::vector<at::Tensor> parameters, const SGDOptions& options)
    : SGD(one_group(std::move(parameters)), options) {}
SGD::SGD(const ParamGroups& groups, const SGDOptions& options)
    : LibtorchOptimizer(reference_of(options), groups, options.impl) {}

void SGD::step_foreach(OptimizerParamGroup& group) {
  const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
  for_each_list(group.params(), [&](const Tensors& parameters) {
    Tensors directions = gradients(parameters);
    if (options.weight_decay() != 0) directions = at::_foreach_add(directions, parameters, options.weight_decay());
    if (options.momentum() != 0) {
      Tensors buffers = update_momentum(*this, options, parameters, directions);
      directions = options.nesterov() ? at::_foreach_add(directions, buffers, options.momentum()) : std::move(buffers);
    }
    at::_foreach_add_(parameters, directions, -options.lr());
  });
}

// --- AdamW

namespace {

std::unique_ptr<torch::optim::Optimizer> reference_of(const AdamWOptions& options) {
  return std::make_unique<torch::optim::AdamW>(std::vector<OptimizerParamGroup>{},
                                               torch::optim::AdamWOptions(options.lr)
                                                   .betas({options.beta1, options.beta2})
                                                   .eps(options.eps)
                                                   .weight_decay(options.weight_decay)
                                                   .amsgrad(options.amsgrad));
}

/// The states of some parameters, side by side, with the scalars that depend on each one's own number of steps.
struct AdamWLists {
  Tensors exp_avg, exp_avg_sq, max_exp_avg_sq;
  std::vector<at::Scalar> denominator_scale, step_size;
};

torch::optim::AdamWParamState& adamw_state(torch::optim::Optimizer& optimizer, const at::Tensor& p, bool amsgrad) {
  using State = torch::optim::AdamWParamState;
  if (State* state = find_state<State>(optimizer, p)) return *state;
  auto fresh = std::make_unique<State>();
  fresh->exp_avg(at::zeros_like(p, at::MemoryFormat::Preserve));
  fresh->exp_avg_sq(at::zeros_like(p, at::MemoryFormat::Preserve));
  if (amsgrad) fresh->max_exp_avg_sq(at::zeros_like(p, at::MemoryFormat::Preserve));
  State& result = *fresh;
  optimizer.state()[p.unsafeGetTensorImpl()] = std::move(fresh);
  return result;
}

AdamWLists count_step(torch::optim::Optimizer& optimizer, const torch::optim::AdamWOptions& options,
                      const Tensors& parameters) {
  const auto [beta1, beta2] = options.betas();
  AdamWLists lists;
  for (const at::Tensor& p : parameters) {
    auto& state = adamw_state(optimizer, p, options.amsgrad());
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

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options)
    : AdamW(one_group(std::move(parameters)), options) {}
AdamW::AdamW(const ParamGroups& groups, const AdamWOptions& options)
    : LibtorchOptimizer(reference_of(options), groups, options.impl) {}

void AdamW::step_foreach(OptimizerParamGroup& group) {
  const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
  const auto [beta1, beta2] = options.betas();
  for_each_list(group.params(), [&, beta1 = beta1, beta2 = beta2](const Tensors& parameters) {
    const Tensors grads = gradients(parameters);
    if (options.weight_decay() != 0) at::_foreach_mul_(parameters, 1 - options.lr() * options.weight_decay());
    AdamWLists lists = count_step(*this, options, parameters);
    at::_foreach_mul_(lists.exp_avg, beta1);
    at::_foreach_add_(lists.exp_avg, grads, 1 - beta1);
    at::_foreach_mul_(lists.exp_avg_sq, beta2);
    at::_foreach_addcmul_(lists.exp_avg_sq, grads, grads, 1 - beta2);
    if (options.amsgrad()) at::_foreach_maximum_(lists.max_exp_avg_sq, lists.exp_avg_sq);
    const Tensors denominators = at::_foreach_sqrt(options.amsgrad() ? lists.max_exp_avg_sq : lists.exp_avg_sq);
    at::_foreach_div_(denominators, lists.denominator_scale);
    at::_foreach_add_(denominators, options.eps());
    at::_foreach_addcdiv_(parameters, lists.exp_avg, denominators, lists.step_size);
  });
}

}  // namespace bellows::optim
