#include "bellows/amp/master_weights.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/add.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <unordered_map>

#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"

namespace bellows::amp {

namespace {

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : named) result.push_back(tensor);
  return result;
}

at::Tensor make_master(const std::string& name, const at::Tensor& low, const at::Tensor* value) {
  if (!value) return low.detach().to(at::kFloat).requires_grad_(low.requires_grad());
  TORCH_CHECK_VALUE(value->scalar_type() == at::kFloat && value->sizes() == low.sizes(), "MasterWeights: ", name,
                    " needs an fp32 master of shape ", low.sizes(), ", got ", value->scalar_type(), " ", value->sizes(),
                    ".");
  return value->detach().requires_grad_(low.requires_grad());
}

}  // namespace

MasterWeights::MasterWeights(const NamedTensors& low, std::vector<at::Tensor> values) {
  TORCH_CHECK_VALUE(values.empty() || values.size() == low.size(), "MasterWeights: expected one master for each of ",
                    low.size(), " parameters, got ", values.size(), ".");
  for (const auto i : c10::irange(low.size())) {
    const auto& [name, parameter] = low[i];
    if (parameter.scalar_type() != at::kBFloat16 && parameter.scalar_type() != at::kHalf) continue;
    const bool shared =
        std::any_of(low_.begin(), low_.end(), [&](const at::Tensor& t) { return t.is_same(parameter); });
    if (shared) continue;
    masters_.emplace_back(name, make_master(name, parameter, values.empty() ? nullptr : &values[i]));
    low_.push_back(parameter);
  }
}

NamedTensors MasterWeights::state_dict() const {
  NamedTensors state;
  for (const auto& [name, master] : masters_) state.emplace_back(name, master.detach());
  return state;
}

void MasterWeights::load_state_dict(const NamedTensors& state) {
  std::unordered_map<std::string, at::Tensor> given(state.begin(), state.end());
  std::vector<at::Tensor> values;
  for (const auto& [name, master] : masters_) {
    const auto found = given.find(name);
    TORCH_CHECK_VALUE(found != given.end() && found->second.defined(), "MasterWeights::load_state_dict: the entry \"",
                      name, "\" is missing. Was the state saved with the same policy?");
    TORCH_CHECK_VALUE(found->second.sizes() == master.sizes(), "MasterWeights::load_state_dict: ", name, " has shape ",
                      found->second.sizes(), " in the state and ", master.sizes(), " in the model.");
    values.push_back(found->second);
    given.erase(found);
  }
  TORCH_CHECK_VALUE(given.empty(), "MasterWeights::load_state_dict: the model has no low-precision parameter \"",
                    given.begin()->first, "\".");
  const no_grad no_graph;
  for (const auto i : c10::irange(values.size())) masters_[i].second.copy_(values[i]);
  write_back();
}

std::vector<std::pair<at::Tensor, at::Tensor>> MasterWeights::pairs() const {
  std::vector<std::pair<at::Tensor, at::Tensor>> result;
  for (const auto i : c10::irange(low_.size())) result.emplace_back(low_[i], masters_[i].second.detach());
  return result;
}

void MasterWeights::attach(torch::optim::Optimizer& optimizer) const {
  if (empty()) return;
  std::unordered_map<const at::TensorImpl*, at::Tensor> master_of;
  for (const auto i : c10::irange(low_.size())) master_of[low_[i].unsafeGetTensorImpl()] = masters_[i].second;
  size_t replaced = 0;
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      at::TensorImpl* const key = parameter.unsafeGetTensorImpl();
      const auto master = master_of.find(key);
      if (master == master_of.end()) continue;
      auto& state = optimizer.state();
      if (state.find(key) != state.end()) {
        auto& slot = state[master->second.unsafeGetTensorImpl()];  // may throw, and may invalidate other entries
        const auto old = state.find(key);
        slot = std::move(old->second);
        state.erase(old);
      }
      parameter = master->second;
      ++replaced;
    }
  }
  TORCH_CHECK_VALUE(replaced > 0,
                    "MasterWeights::attach: the optimizer contains none of the low-precision parameters. Create it "
                    "from the parameters of the same model, and call attach() once.");
}

void MasterWeights::take_gradients() const {
  const no_grad no_graph;
  for (const auto i : c10::irange(low_.size())) {
    at::Tensor& gradient = low_[i].mutable_grad();
    if (!gradient.defined()) continue;
    at::Tensor& sum = masters_[i].second.mutable_grad();
    if (sum.defined() && sum.layout() == at::kStrided && gradient.layout() == at::kStrided) {
      sum.add_(gradient);
    } else {
      const at::Tensor cast = gradient.to(at::kFloat);
      sum = sum.defined() ? sum.add(cast) : cast;
    }
    gradient.reset();
  }
}

void MasterWeights::write_back() const {
  if (empty()) return;
  const no_grad no_graph;
  at::_foreach_copy_(low_, tensors_of(masters_));
}

}  // namespace bellows::amp
