#include "bellows/parallel/tensor/tensor_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "bellows/optim/state/state.h"

namespace bellows::parallel {

namespace {

/// Describes the parts of a divided tensor. They are views of `local`.
void append_parts(std::vector<comm::Shard>& shards, const std::string& name, const at::Tensor& local,
                  const TensorCut& cut, const comm::Group& group) {
  int64_t at = 0;
  for (comm::ShardSpec& spec : cut.boxes(group.rank(), group.size())) {
    const int64_t length = spec.length[static_cast<size_t>(cut.dim)];
    shards.push_back({name, local.narrow(cut.dim, at, length), std::move(spec)});
    at += length;
  }
}

void append_whole(std::vector<comm::Shard>& shards, const std::string& name, const at::Tensor& tensor) {
  shards.push_back({name, tensor, comm::ShardSpec::whole(tensor.sizes().vec())});
}

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

/// Returns how the parameter of "state.<i>.<field>" is divided; null: it is complete, or the name is that of an option.
const TensorCut* cut_of_state(const std::string& name, const std::vector<at::Tensor>& parameters,
                              const std::vector<TensorCut>& cuts) {
  const auto parts = optim::split_state_name(name);
  if (!parts && !name.starts_with("state.")) return nullptr;
  TORCH_CHECK_VALUE(parts && parts->first < parameters.size(), "tensor parallelism: the state contains \"", name,
                    "\", but the optimizer has ", parameters.size(),
                    " parameters. The state belongs to another optimizer or model.");
  return find_cut(cuts, parameters[parts->first]);
}

/// Returns whether a state tensor is divided like its parameter. Counters have one element on all ranks.
bool is_divided(const std::string& name, at::IntArrayRef sizes, at::IntArrayRef expected, at::ScalarType dtype) {
  if (sizes == expected && at::isFloatingType(dtype)) return true;
  TORCH_CHECK_VALUE(c10::multiply_integers(sizes) == 1 && sizes.size() <= 1, "tensor parallelism: \"", name,
                    "\" has dtype ", dtype, " and sizes [", c10::Join(", ", sizes), "], but its parameter has [",
                    c10::Join(", ", expected),
                    "]. Only state with one floating-point number per element can be divided. Use SGD, Adam, AdamW, "
                    "RMSprop, Adagrad or Lion without low-bit state.");
  return false;
}

}  // namespace

const TensorCut* find_cut(const std::vector<TensorCut>& cuts, const at::Tensor& parameter) {
  const auto found =
      std::find_if(cuts.begin(), cuts.end(), [&](const TensorCut& cut) { return cut.parameter.is_same(parameter); });
  return found == cuts.end() ? nullptr : &*found;
}

std::vector<comm::Shard> model_shards(const Model& model, const std::vector<TensorCut>& cuts,
                                      const comm::Group& group) {
  return shards_like(model, model.state_dict(), cuts, group);
}

std::vector<comm::Shard> shards_like(const Model& model, const NamedTensors& local, const std::vector<TensorCut>& cuts,
                                     const comm::Group& group) {
  const NamedTensors state = model.state_dict();
  const std::map<std::string, at::Tensor> originals(state.begin(), state.end());
  std::vector<comm::Shard> shards;
  for (const auto& [name, tensor] : local) {
    const auto original = originals.find(name);
    TORCH_CHECK_VALUE(original != originals.end(), "tensor parallelism: the model \"", model.name(),
                      "\" has no tensor \"", name, "\".");
    if (const TensorCut* cut = find_cut(cuts, original->second)) {
      append_parts(shards, name, tensor.detach(), *cut, group);
    } else {
      append_whole(shards, name, tensor.detach());
    }
  }
  return shards;
}

std::vector<comm::Shard> optimizer_shards(const torch::optim::Optimizer& optimizer, const std::vector<TensorCut>& cuts,
                                          const comm::Group& group) {
  const std::vector<at::Tensor> parameters = parameters_of(optimizer);
  std::vector<comm::Shard> shards;
  for (const auto& [name, tensor] : optim::state_dict(optimizer)) {
    const TensorCut* cut = cut_of_state(name, parameters, cuts);
    if (cut && is_divided(name, tensor.sizes(), cut->parameter.sizes(), tensor.scalar_type())) {
      append_parts(shards, name, tensor.detach(), *cut, group);
    } else {
      append_whole(shards, name, tensor.detach());
    }
  }
  return shards;
}

std::vector<comm::Shard> wanted_optimizer_shards(const torch::optim::Optimizer& optimizer,
                                                 const std::vector<SavedTensor>& saved,
                                                 const std::vector<TensorCut>& cuts, const comm::Group& group) {
  const std::vector<at::Tensor> parameters = parameters_of(optimizer);
  std::vector<comm::Shard> shards;
  for (const SavedTensor& tensor : saved) {
    const TensorCut* cut = cut_of_state(tensor.name, parameters, cuts);
    if (cut && is_divided(tensor.name, tensor.sizes, cut->sizes, tensor.dtype)) {
      append_parts(shards, tensor.name, at::empty(cut->parameter.sizes(), tensor.dtype), *cut, group);
    } else {
      append_whole(shards, tensor.name, at::empty(tensor.sizes, tensor.dtype));
    }
  }
  return shards;
}

void load_optimizer_shards(torch::optim::Optimizer& optimizer, const std::vector<comm::Shard>& filled,
                           const std::vector<TensorCut>& cuts, const comm::Group& group) {
  const std::vector<at::Tensor> parameters = parameters_of(optimizer);
  NamedTensors state;
  std::map<std::string, size_t> places;
  for (const auto& [name, part, spec] : filled) {
    const TensorCut* cut = cut_of_state(name, parameters, cuts);
    if (!cut || spec.sizes != cut->sizes) {
      state.emplace_back(name, part);
      continue;
    }
    const auto [place, added] = places.try_emplace(name, state.size());
    if (added) state.emplace_back(name, at::empty(cut->parameter.sizes(), part.options()));
    int64_t at = 0;
    for (const comm::ShardSpec& box : cut->boxes(group.rank(), group.size())) {
      const int64_t length = box.length[static_cast<size_t>(cut->dim)];
      if (box == spec) state[place->second].second.narrow(cut->dim, at, length).copy_(part);
      at += length;
    }
  }
  optim::load_state_dict(optimizer, state);
}

}  // namespace bellows::parallel
