#include "bellows/optim/larc.h"

#include <torch/torch.h>

#include <limits>
#include <utility>

#include "bellows/optim/optimizer_internals.h"

namespace bellows::optim {

namespace {

double& weight_decay_of(torch::optim::OptimizerOptions& options) {
  return *find_number(options, "weight_decay");
}

bool is_not_strided(const at::Tensor& p) {
  return p.grad().defined() && p.grad().layout() != at::kStrided;
}

/// Returns the norms as one tensor [number of tensors].
at::Tensor norms(const TensorList& tensors) {
  TensorList all = at::_foreach_norm(tensors);
  for (at::Tensor& norm : all) norm = norm.to(norm.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return at::stack(all);
}

}  // namespace

LibtorchOptimizer::Larc::Larc(LibtorchOptimizer& optimizer) : optimizer_(optimizer) {
  TORCH_CHECK_VALUE(!optimizer.any_gradient(is_not_strided), optimizer.common_.name,
                    "::step: LARC does not support sparse gradients. Set sparse(false) in the embedding.");
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups_) scale(group);
  decays_.reserve(optimizer.param_groups_.size());
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups_)
    decays_.push_back(std::exchange(weight_decay_of(group.options()), 0));
}

LibtorchOptimizer::Larc::~Larc() {
  for (size_t g = 0; g < decays_.size(); ++g) weight_decay_of(optimizer_.param_groups_[g].options()) = decays_[g];
}

void LibtorchOptimizer::Larc::scale(const torch::optim::OptimizerParamGroup& group) const {
  const auto options = group.options().clone();
  const double lr = options->get_lr(), decay = weight_decay_of(*options);
  for_each_list(group.params(), [&](const TensorList& parameters) { scale(parameters, lr, decay); });
}

void LibtorchOptimizer::Larc::scale(const TensorList& parameters, double lr, double decay) const {
  TensorList weights, grads = gradients_of(parameters);
  weights.reserve(parameters.size());
  for (const at::Tensor& p : parameters) {
    const at::Tensor master = optimizer_.master_of(p);
    weights.push_back(master.defined() ? master : p.detach());
  }
  // The numbers stay on the device, so that the host does not wait for them.
  const at::Tensor of_weights = norms(weights), of_grads = norms(grads);
  const auto [trust, clip, eps] = *optimizer_.larc_;
  at::Tensor rate = of_weights * trust / (of_grads + of_weights * decay + eps);
  if (clip) rate = (rate / lr).clamp_max(1);
  const at::Tensor skipped = (of_weights == 0).logical_or_(of_grads == 0);
  const TensorList rates = rate.masked_fill(skipped, 1).unbind();
  const TensorList decays = at::full_like(rate, decay).masked_fill_(skipped, 0).unbind();
  for (size_t i = 0; i < grads.size(); ++i) {
    if (decay != 0) grads[i].addcmul_(weights[i], decays[i].to(weights[i].scalar_type()));
    grads[i].mul_(rates[i]);
  }
}

void LibtorchOptimizer::set_larc(const std::optional<LarcOptions>& options) {
  if (options) {
    TORCH_CHECK_VALUE(
        !common_.whole_parameters, common_.name,
        " normalizes gradients itself, so LARC would have no effect. Use LARC with SGD, or leave it out.");
    check_option(common_.name, "trust_coefficient of LARC", options->trust_coefficient,
                 std::numeric_limits<double>::min());
    check_option(common_.name, "eps of LARC", options->eps);
  }
  larc_ = options;
}

}  // namespace bellows::optim
