#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/state.h"
#include "bellows/parallel/zero/zero_optimizer_impl.h"

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

constexpr std::string_view scales_suffix = ".absmax", master_suffix = ".master";

/// Elements of a sharded parameter that share a scale; 0 where its state is not low-bit.
int64_t block_of(const torch::optim::Optimizer& local, const Place& place) {
  const auto* ours = dynamic_cast<const optim::LibtorchOptimizer*>(&local);
  return ours ? ours->state_block(place.piece) : 0;
}

/// Scales, and codes that are not one an element, go by blocks: the run of them that belongs to this rank's. None for
/// other state.
std::optional<comm::ShardSpec> run_of_blocks(const torch::optim::Optimizer& local, const Place* place,
                                             std::string_view name, at::ScalarType dtype) {
  const int64_t block = place ? block_of(local, *place) : 0;
  if (block == 0) return std::nullopt;
  int64_t width = dtype == at::kByte ? dynamic_cast<const optim::LibtorchOptimizer&>(local).state_block_bytes() : block;
  if (name.ends_with(scales_suffix)) width = 1;
  if (width == block) return std::nullopt;
  const auto blocks = [&](int64_t elements) { return (elements + block - 1) / block * width; };
  return comm::ShardSpec{{blocks(place->parameter.numel())}, {place->begin / block * width}, {blocks(place->count)}};
}

/// What a tensor of state holds: a run of blocks, elements of a place, or the whole of something.
Parts parts_of(const std::optional<comm::ShardSpec>& run, const Place* place, const at::Tensor& tensor) {
  if (run) return {{*run, tensor}};
  return place ? place->boxes(tensor) : whole(tensor);
}

/// Throws where a moment is of another kind than this optimizer keeps.
void check_kind(const torch::optim::Optimizer& local, const Place& place, const SavedTensor& saved) {
  if (c10::multiply_integers(saved.sizes) <= 1 || saved.name.ends_with(master_suffix)) return;
  const bool low_bit = saved.dtype == at::kByte || saved.name.ends_with(scales_suffix);
  TORCH_CHECK_VALUE(low_bit == (block_of(local, place) > 0), "ShardedOptimizer: \"", saved.name, "\" is ",
                    low_bit ? "low-bit" : "floating-point",
                    " state, this optimizer keeps another kind for parameter \"", place.name,
                    "\". Construct it with the state_dtype and min_8bit_size of the saved one.");
  const bool row_major =
      saved.strides.empty() || at::IntArrayRef(saved.strides).equals(c10::contiguous_strides(saved.sizes));
  TORCH_CHECK_VALUE(!low_bit || row_major, "ShardedOptimizer: \"", saved.name, "\" has strides [",
                    c10::Join(", ", saved.strides), "], parameter \"", place.name, "\" is row-major. Low-bit blocks ",
                    "follow the memory: bring the model into the layout it was saved in.");
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
    const auto run = run_of_blocks(*impl_->local, place, name, tensor.scalar_type());
    const bool elements = place && tensor.dim() == 1 && tensor.numel() == place->count;
    for (auto& [spec, local] : parts_of(run, elements ? place : nullptr, tensor)) shards.push_back({name, local, spec});
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
  for (const SavedTensor& tensor : saved) {
    const std::string& name = tensor.name;
    const std::vector<int64_t>& sizes = tensor.sizes;
    const std::optional<size_t> index = parameter_index(name);
    TORCH_CHECK_VALUE(!index || *index < impl_->places.size(), "ShardedOptimizer: the state holds \"", name,
                      "\", the optimizer has ", impl_->places.size(),
                      " parameters. The state belongs to another optimizer or model.");
    const Place* place = index ? impl_->places[*index] : nullptr;
    if (place) check_kind(*impl_->local, *place, tensor);
    const auto run = run_of_blocks(*impl_->local, place, name, tensor.dtype);
    const std::vector<int64_t> expected = run ? run->sizes : place ? place->parameter.sizes().vec() : sizes;
    TORCH_CHECK_VALUE(
        sizes == expected || (!run && c10::multiply_integers(sizes) == 1), "ShardedOptimizer: \"", name,
        "\" has sizes [", c10::Join(", ", sizes), "], parameter \"", place->name, "\" has [", c10::Join(", ", expected),
        "] there. The state belongs to another model",
        run || tensor.dtype == at::kByte ? ", or was saved with another block size or state_dtype." : ".");
    if (place && place->count == 0) continue;  // another rank's
    const bool elements = place && !run && sizes == expected;
    const at::Tensor local = at::empty(run        ? run->length
                                       : elements ? std::vector<int64_t>{place->count}
                                                  : sizes,
                                       tensor.dtype);
    for (auto& [spec, part] : parts_of(run, elements ? place : nullptr, local)) shards.push_back({name, part, spec});
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
    const bool by_blocks = run_of_blocks(*impl_->local, place, name, local.scalar_type()).has_value();
    if (!place || by_blocks || place->parameter.sizes() != spec.sizes) {
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
    saved.push_back({name, tensor.scalar_type(), tensor.sizes().vec(),
                     tensor.is_contiguous() ? std::vector<int64_t>() : tensor.strides().vec()});
    tensors[name] = &tensor;
  }
  const std::vector<comm::Shard> wanted = wanted_shards(saved);
  for (const auto& [name, local, spec] : wanted) local.copy_(comm::part_of(*tensors.at(name), spec));
  load_shards(wanted);
}

}  // namespace bellows::parallel
