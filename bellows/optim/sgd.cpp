#include <torch/optim/sgd.h>
#include <torch/torch.h>

#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/optimizers.h"

namespace bellows::optim {

namespace {

using SgdState = torch::optim::SGDParamState;

void check_sgd(const torch::optim::SGDOptions& o) {
  check_option("SGD", "lr", o.lr());
  check_option("SGD", "momentum", o.momentum());
  check_option("SGD", "weight_decay", o.weight_decay());
  check_option("SGD", "dampening", o.dampening(), std::numeric_limits<double>::lowest());
  TORCH_CHECK_VALUE(!o.nesterov() || (o.momentum() > 0 && o.dampening() == 0),
                    "SGD: Nesterov's momentum needs momentum above 0 and no dampening, got momentum ", o.momentum(),
                    ", dampening ", o.dampening(), ".");
}

std::unique_ptr<torch::optim::Optimizer> reference_of(const SGDOptions& options) {
  const auto o = torch::optim::SGDOptions(options.lr)
                     .momentum(options.momentum)
                     .dampening(options.dampening)
                     .weight_decay(options.weight_decay)
                     .nesterov(options.nesterov);
  check_sgd(o);
  return std::make_unique<torch::optim::SGD>(std::vector<torch::optim::OptimizerParamGroup>{}, o);
}

/// Updates the momentum buffers of `parameters` and returns them.
TensorList update_momentum(torch::optim::Optimizer& optimizer, const torch::optim::SGDOptions& options,
                           const TensorList& parameters, const TensorList& directions) {
  TensorList all, old_buffers, old_directions;
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto& slot = optimizer.state()[parameters[i].unsafeGetTensorImpl()];
    if (slot) {
      all.push_back(static_cast<SgdState&>(*slot).momentum_buffer());
      old_buffers.push_back(all.back());
      old_directions.push_back(directions[i]);
    } else {
      all.push_back(directions[i].clone());
      auto fresh = std::make_unique<SgdState>();
      fresh->momentum_buffer(all.back());
      slot = std::move(fresh);
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
SGD::SGD(const std::vector<PatternGroup>& groups, const SGDOptions& options)
    : SGD(with_options(groups, reference_of(options)->defaults()), options) {}
SGD::SGD(const ParamGroups& groups, const SGDOptions& options)
    : LibtorchOptimizer(reference_of(options), groups, options.impl,
                        common_of("SGD", options, /*sparse=*/true, /*aten_cuda=*/true)) {
  for (const auto& group : param_groups_) check_sgd(static_cast<const torch::optim::SGDOptions&>(group.options()));
}

void SGD::check(const torch::optim::OptimizerOptions& options) const {
  check_sgd(static_cast<const torch::optim::SGDOptions&>(options));
}

void SGD::step_foreach(torch::optim::OptimizerParamGroup& group) {
  const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
  for_each_list(group.params(), [&](const TensorList& parameters) {
    TensorList directions = gradients_of(parameters);
    if (options.weight_decay() != 0) directions = at::_foreach_add(directions, parameters, options.weight_decay());
    if (options.momentum() != 0) {
      TensorList buffers = update_momentum(*this, options, parameters, directions);
      directions = options.nesterov() ? at::_foreach_add(directions, buffers, options.momentum()) : std::move(buffers);
    }
    at::_foreach_add_(parameters, directions, -options.lr());
  });
}

void SGD::step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) {
  const OptimizerInternals internals{*this};
  const auto& o = static_cast<const torch::optim::SGDOptions&>(group.options());
  std::vector<FusedTensor<kernels::SgdRule>> tensors;
  for (const at::Tensor& p : group.params()) {
    if (!p.grad().defined()) continue;
    kernels::SgdRule rule{.lr = o.lr(),
                          .momentum = o.momentum(),
                          .dampening = o.dampening(),
                          .weight_decay = o.weight_decay(),
                          .nesterov = o.nesterov()};
    at::Tensor buffer;
    if (o.momentum() != 0) {
      auto& state = internals.state<SgdState>(p, [&] {
        rule.first = true;
        SgdState fresh;
        fresh.momentum_buffer(internals.new_state(p));
        return fresh;
      });
      buffer = state.momentum_buffer();
    }
    tensors.push_back(internals.fused(p, rule));
    tensors.back().state[0] = buffer;
  }
  run_fused(std::move(tensors), step);
}

}  // namespace bellows::optim
