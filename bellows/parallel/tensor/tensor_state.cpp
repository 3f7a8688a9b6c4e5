#include "bellows/parallel/tensor/tensor_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/state.h"

namespace bellows::parallel {

namespace {

/// Appends the elements of a box in this rank's slice of a tensor, as boxes in the complete tensor.
/// Params: box – in the slice; part – its elements, in the shape of the box
void append_box(std::vector<comm::Shard>& shards, const std::string& name, const comm::ShardSpec& box,
                const at::Tensor& part, const TensorCut& cut, const comm::Group& group) {
  const auto dim = static_cast<size_t>(cut.dim);
  int64_t at = 0;  // start of a range in the slice
  for (const auto& [begin, length] : cut.ranges(group.rank(), group.size())) {
    const int64_t first = std::max(at, box.offset[dim]);
    const int64_t end = std::min(at + length, box.offset[dim] + box.length[dim]);
    const int64_t count = std::max<int64_t>(end - first, 0);
    if (count > 0 || length == 0) {  // a rank can have no rows of a small vocabulary
      comm::ShardSpec spec{cut.sizes, box.offset, box.length};
      spec.offset[dim] = begin + first - at;
      spec.length[dim] = count;
      shards.push_back({name, part.narrow(cut.dim, first - box.offset[dim], count), std::move(spec)});
    }
    at += length;
  }
}

/// Converts a part of this rank's slice to parts of the complete tensor. They are views of it.
void append_parts(std::vector<comm::Shard>& shards, const comm::Shard& of_slice, const TensorCut& cut,
                  const comm::Group& group) {
  const auto& [name, local, spec] = of_slice;
  if (!spec.is_run()) return append_box(shards, name, spec, local, cut, group);
  int64_t at = 0;
  for (const comm::ShardSpec& box : spec.boxes()) {
    append_box(shards, name, box, local.narrow(0, at, box.numel()).view(box.length), cut, group);
    at += box.numel();
  }
}

comm::Shard whole_shard(const std::string& name, const at::Tensor& tensor) {
  return {name, tensor, comm::ShardSpec::whole(tensor.sizes().vec())};
}

/// The parts of the optimizer's state that this rank holds, in the slices of parameters.
std::vector<comm::Shard> state_of_slices(const torch::optim::Optimizer& optimizer) {
  const auto* const ours = dynamic_cast<const optim::LibtorchOptimizer*>(&optimizer);
  TORCH_CHECK_VALUE(!ours || !ours->needs_whole_parameters(),
                    "tensor parallelism: the optimizer uses norms, means or matrices of complete parameters, but each "
                    "rank has slices. Use an elementwise optimizer such as AdamW, without LARC.");
  const auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer);
  return sharded ? sharded->state_shards() : whole_shards(optim::state_dict(optimizer));
}

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  if (const auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer)) return sharded->parameters();
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

std::vector<comm::Shard> whole_shards(const NamedTensors& tensors) {
  std::vector<comm::Shard> shards;
  shards.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) shards.push_back(whole_shard(name, tensor.detach()));
  return shards;
}

std::vector<comm::Shard> model_shards(const Model& model, const std::vector<TensorCut>& cuts,
                                      const comm::Group& group) {
  return complete_shards(model, whole_shards(model.state_dict()), cuts, group);
}

std::vector<comm::Shard> complete_shards(const Model& model, const std::vector<comm::Shard>& of_slices,
                                         const std::vector<TensorCut>& cuts, const comm::Group& group) {
  const NamedTensors state = model.state_dict();
  const std::map<std::string, at::Tensor> originals(state.begin(), state.end());
  std::vector<comm::Shard> shards;
  for (const comm::Shard& part : of_slices) {
    const auto original = originals.find(part.name);
    TORCH_CHECK_VALUE(original != originals.end(), "tensor parallelism: the model \"", model.name(),
                      "\" has no tensor \"", part.name, "\".");
    if (const TensorCut* cut = find_cut(cuts, original->second)) {
      append_parts(shards, part, *cut, group);
    } else {
      shards.push_back(part);
    }
  }
  return shards;
}

std::vector<comm::Shard> optimizer_shards(const torch::optim::Optimizer& optimizer, const std::vector<TensorCut>& cuts,
                                          const comm::Group& group) {
  const std::vector<at::Tensor> parameters = parameters_of(optimizer);
  std::vector<comm::Shard> shards;
  for (const comm::Shard& part : state_of_slices(optimizer)) {
    const TensorCut* cut = cut_of_state(part.name, parameters, cuts);
    if (cut && is_divided(part.name, part.spec.sizes, cut->parameter.sizes(), part.local.scalar_type())) {
      append_parts(shards, part, *cut, group);
    } else {
      shards.push_back(part);
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
      append_parts(shards, whole_shard(tensor.name, at::empty(cut->parameter.sizes(), tensor.dtype)), *cut, group);
    } else {
      shards.push_back(whole_shard(tensor.name, at::empty(tensor.sizes, tensor.dtype)));
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
