#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "bellows/optim/state.h"
#include "bellows/parallel/shard_optimizer_impl.h"

namespace bellows::parallel {

namespace {

constexpr std::string_view state_prefix = "state.";

/// Which parameter "state.<i>.<field>" is about; none for any other name.
std::optional<size_t> parameter_index(std::string_view name) {
  if (!name.starts_with(state_prefix)) return std::nullopt;
  size_t index = 0;
  const char* begin = name.data() + state_prefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), index);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return std::nullopt;
  return index;
}

/// Parameter after parameter, as optim::state_dict() writes them; what belongs to none comes last.
void sort_by_parameter(NamedTensors& state) {
  std::stable_sort(state.begin(), state.end(), [](const auto& a, const auto& b) {
    return parameter_index(a.first).value_or(SIZE_MAX) < parameter_index(b.first).value_or(SIZE_MAX);
  });
}

using Parts = std::vector<std::pair<comm::ShardSpec, at::Tensor>>;

Parts whole(const at::Tensor& tensor) {
  return {{comm::ShardSpec::whole(tensor.sizes().vec()), tensor}};
}

}  // namespace

std::vector<comm::Shard> ShardedOptimizer::state_shards() const {
  const NamedTensors state = optim::state_dict(*impl_->local);
  std::vector<comm::Shard> shards;
  shards.reserve(state.size());
  for (const auto& [name, tensor] : state) {
    TORCH_CHECK_VALUE(name != "archive",
                      "ShardedOptimizer: the state of an optimizer of a class of your own cannot be ", "taken apart.");
    const std::optional<size_t> index = parameter_index(name);
    const Place* place = index ? impl_->places[*index] : nullptr;
    const bool elements = place && tensor.dim() == 1 && tensor.numel() == place->count;
    for (auto& [spec, local] : elements ? place->boxes(tensor) : whole(tensor)) shards.push_back({name, local, spec});
  }
  return shards;
}

NamedTensors ShardedOptimizer::state_dict() const {
  NamedTensors state = comm::gather(state_shards(), impl_->group);
  sort_by_parameter(state);
  return state;
}

std::vector<comm::Shard> ShardedOptimizer::wanted_shards(const std::vector<SavedTensor>& saved) const {
  std::vector<comm::Shard> shards;
  shards.reserve(saved.size());
  for (const auto& [name, dtype, sizes] : saved) {
    const std::optional<size_t> index = parameter_index(name);
    TORCH_CHECK_VALUE(!index || *index < impl_->places.size(), "ShardedOptimizer: the state holds \"", name,
                      "\", the optimizer has ", impl_->places.size(),
                      " parameters. The state belongs to another optimizer or model.");
    const Place* place = index ? impl_->places[*index] : nullptr;
    if (place && place->count == 0) continue;  // another rank's
    const bool elements = place && place->parameter.sizes() == sizes;
    TORCH_CHECK_VALUE(!place || elements || c10::multiply_integers(sizes) == 1, "ShardedOptimizer: \"", name,
                      "\" has sizes [", c10::Join(", ", sizes), "], parameter \"", place->name, "\" has ",
                      place->parameter.sizes(), ". The state belongs to another model.");
    const at::Tensor local = at::empty(elements ? std::vector<int64_t>{place->count} : sizes, dtype);
    for (auto& [spec, part] : elements ? place->boxes(local) : whole(local)) shards.push_back({name, part, spec});
  }
  return shards;
}

void ShardedOptimizer::load_shards(const std::vector<comm::Shard>& filled) {
  NamedTensors state;
  std::set<std::string> done;
  std::map<std::pair<std::string, std::vector<int64_t>>, at::Tensor> parts;
  for (const auto& [name, local, spec] : filled) parts[{name, spec.offset}] = local;
  for (const auto& [name, local, spec] : filled) {
    if (!done.insert(name).second) continue;
    const std::optional<size_t> index = parameter_index(name);
    const Place* place = index && *index < impl_->places.size() ? impl_->places[*index] : nullptr;
    if (!place || place->parameter.sizes() != spec.sizes) {
      state.emplace_back(name, local);
      continue;
    }
    const at::Tensor run = at::empty({place->count}, local.options());
    for (auto& [box, view] : place->boxes(run)) {
      const auto found = parts.find({name, box.offset});
      TORCH_CHECK_VALUE(found != parts.end() && found->second.sizes() == view.sizes(),
                        "ShardedOptimizer::load_shards: ", "expected the parts that wanted_shards() gave, one of \"",
                        name, "\" is missing.");
      view.copy_(found->second);
    }
    state.emplace_back(name, run);
  }
  optim::load_state_dict(*impl_->local, state);
  copy_options_to_groups();
}

void ShardedOptimizer::load_state_dict(const NamedTensors& state) {
  std::vector<SavedTensor> saved;
  std::map<std::string_view, const at::Tensor*> tensors;
  saved.reserve(state.size());
  for (const auto& [name, tensor] : state) {
    saved.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    tensors[name] = &tensor;
  }
  const std::vector<comm::Shard> wanted = wanted_shards(saved);
  for (const auto& [name, local, spec] : wanted) local.copy_(comm::part_of(*tensors.at(name), spec));
  load_shards(wanted);
}

}  // namespace bellows::parallel
