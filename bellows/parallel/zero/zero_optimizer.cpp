#include "bellows/parallel/zero/zero_optimizer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/util/Type.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "bellows/comm/collectives.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/state.h"
#include "bellows/parallel/ddp/reducer.h"
#include "bellows/parallel/ddp/same_model.h"
#include "bellows/parallel/zero/shard_options.h"
#include "bellows/parallel/zero/zero_optimizer_impl.h"

namespace bellows::parallel {

namespace {

/// Parameters may be split at multiples of this: in low-bit state, elements that share a scale stay together.
int64_t block_of(const torch::optim::Optimizer& optimizer, const NamedTensors& to_shard) {
  const auto* ours = dynamic_cast<const optim::LibtorchOptimizer*>(&optimizer);
  int64_t block = 1;
  for (const auto& [name, parameter] : to_shard) {
    const int64_t own = ours ? ours->state_block(parameter) : 0;
    TORCH_CHECK_VALUE(own == 0 || parameter.is_contiguous(),
                      "zero_optimizer: low-bit state can only be sharded if parameters are row-major, but \"", name,
                      "\" has shape ", parameter.sizes(), " and strides ", parameter.strides(),
                      ". Make it contiguous, or raise min_8bit_size above ", parameter.numel(), ".");
    block = std::max(block, own);
  }
  return block;
}

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> result;
  for (const auto& group : optimizer.param_groups()) {
    result.insert(result.end(), group.params().begin(), group.params().end());
  }
  return result;
}

/// The parameters of the model that the optimizer trains, each once, in the model's order.
NamedTensors trained(const Model& model, const std::vector<at::Tensor>& optimized) {
  std::unordered_set<const at::TensorImpl*> wanted, known;
  for (const at::Tensor& parameter : optimized) wanted.insert(parameter.unsafeGetTensorImpl());
  NamedTensors result;
  for (const auto& [name, parameter] : model.named_parameters()) {
    const at::TensorImpl* impl = parameter.unsafeGetTensorImpl();
    if (!known.insert(impl).second || !wanted.count(impl) || !parameter.requires_grad()) continue;
    TORCH_CHECK_VALUE(!GradientShards::shards(parameter), "zero_optimizer: parameter \"", name,
                      "\" already belongs to another sharded optimizer.");
    result.emplace_back(name, parameter);
  }
  for (size_t i = 0; i < optimized.size(); ++i) {
    TORCH_CHECK_VALUE(known.count(optimized[i].unsafeGetTensorImpl()), "zero_optimizer: parameter ", i,
                      " of the optimizer, of shape ", optimized[i].sizes(), ", does not belong to model \"",
                      model.name(),
                      "\". The parameter belongs to another model, or it is a master weight of amp::MasterWeights. In "
                      "the second case, use master_weights of bellows::optim instead.");
  }
  TORCH_CHECK_VALUE(!result.empty(), "zero_optimizer: the optimizer has no parameter of model \"", model.name(),
                    "\" that requires a gradient.");
  return result;
}

/// Whether every rank has the complete tensor. Another sharded optimizer may have withdrawn its memory.
bool has_memory(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return storage->nbytes() == 0 || const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks().get();
}

/// The parameters that are not sharded: those that are not in `sharded`, and belong to no other sharded optimizer.
NamedTensors not_sharded(const Model& model, const NamedTensors& sharded) {
  std::unordered_set<const at::TensorImpl*> known;
  for (const auto& [name, parameter] : sharded) known.insert(parameter.unsafeGetTensorImpl());
  NamedTensors result;
  for (const auto& item : model.named_parameters()) {
    const bool mine = known.insert(item.second.unsafeGetTensorImpl()).second;
    if (mine && !GradientShards::shards(item.second) && has_memory(item.second)) result.push_back(item);
  }
  return result;
}

/// The parameters of the model that have no gradient, each once.
NamedTensors frozen(const Model& model) {
  std::unordered_set<const at::TensorImpl*> known;
  NamedTensors result;
  for (const auto& item : model.named_parameters()) {
    if (!item.second.requires_grad() && known.insert(item.second.unsafeGetTensorImpl()).second) result.push_back(item);
  }
  return result;
}

void check_same_tensors(NamedTensors tensors, const Model& model, const comm::Group& group) {
  for (const auto& buffer : model.named_buffers()) tensors.push_back(buffer);
  std::vector<std::string> lines;
  lines.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors)
    lines.push_back(c10::str(name, " ", tensor.scalar_type(), tensor.sizes(), ", strides ", tensor.strides()));
  check_same_lines("zero_optimizer: the ranks hold different parameters or buffers", "tensor", lines, group);
}

/// The state to restore after the parameters are replaced by shards.
NamedTensors state_before(const torch::optim::Optimizer& optimizer) {
  NamedTensors state = optim::state_dict(optimizer);
  if (state.empty() || state.front().first != "archive") return state;
  TORCH_CHECK_VALUE(optimizer.state().empty(), "zero_optimizer: the state of a ",
                    c10::demangle(typeid(optimizer).name()),
                    " cannot be split. Shard the optimizer before its first step.");
  return {};
}

/// Params: rest – parameters that are not in the layout
void broadcast_from_first(const Layout& layout, const NamedTensors& rest, const Model& model,
                          const comm::Group& group) {
  const c10::NoGradGuard no_grad;
  for (const Unit& unit : layout.units) {
    if (!unit.shard.defined()) comm::broadcast(unit.flat, 0, group);  // otherwise, all ranks read the same file
  }
  broadcast_tensors(rest, 0, group);
  broadcast_buffers(model, group);
}

/// Only the first sharded optimizer of a model may change parameters that it does not update.
void check_first(const Model& model) {
  for (const auto& [name, parameter] : model.named_parameters()) {
    TORCH_CHECK_VALUE(!GradientShards::shards(parameter), "zero_optimizer: parameter \"", name,
                      "\" already belongs to another sharded optimizer, but shard_frozen and weights_file also concern "
                      "the parameters of other optimizers. Set them for the first optimizer only.");
  }
}

void read(const NamedTensors& tensors, const WeightsSource& weights) {
  for (const auto& [name, tensor] : tensors) weights.read(name, tensor);
}

std::unordered_map<const at::TensorImpl*, Place*> places_by_parameter(Layout& layout) {
  std::unordered_map<const at::TensorImpl*, Place*> places;
  for (Place& place : layout.places) places[place.parameter.unsafeGetTensorImpl()] = &place;
  return places;
}

/// The range of the parameter that this rank holds in stage 3, instead of the range that it updates.
Place held_part(const Layout& layout, const Place& place, const ShardGroups& groups) {
  const Unit& unit = layout.units[place.unit];
  return unit.shard.defined() ? place.held_by(groups.shard.rank(), unit) : place;
}

void put_pieces(ShardedOptimizer::Impl& impl) {
  const auto places = places_by_parameter(impl.layout);
  auto* const ours = dynamic_cast<optim::LibtorchOptimizer*>(impl.local.get());
  for (auto& group : impl.local->param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      const auto found = places.find(parameter.unsafeGetTensorImpl());
      const bool trained = found != places.end() && parameter.requires_grad();
      impl.places.push_back(trained ? found->second : nullptr);
      if (!impl.places.back()) continue;
      parameter = impl.places.back()->piece;
      if (ours) ours->set_whole_numel(parameter, impl.places.back()->parameter.numel());
    }
  }
}

/// The groups as the caller sees them.
std::vector<torch::optim::OptimizerParamGroup> groups_of(const ShardedOptimizer::Impl& impl) {
  std::vector<torch::optim::OptimizerParamGroup> groups = impl.local->param_groups();
  size_t index = 0;
  for (auto& group : groups) {
    for (at::Tensor& parameter : group.params()) {
      if (impl.options.stage == 1) parameter = impl.parameters[index];
      ++index;
    }
  }
  return groups;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(std::unique_ptr<Impl> impl)
    : Optimizer(groups_of(*impl), impl->local->defaults().clone()), impl_(std::move(impl)) {}

ShardedOptimizer::~ShardedOptimizer() = default;

torch::optim::Optimizer& ShardedOptimizer::local() const {
  return *impl_->local;
}

int ShardedOptimizer::stage() const {
  return impl_->options.stage;
}

const std::vector<at::Tensor>& ShardedOptimizer::parameters() const {
  return impl_->parameters;
}

NamedTensors ShardedOptimizer::local_parameters() const {
  if (stage() < 3) return {};
  const auto places = places_by_parameter(impl_->layout);
  NamedTensors local;
  for (const auto& [name, tensor] : impl_->model.named_parameters()) {
    const auto found = places.find(tensor.unsafeGetTensorImpl());
    if (found != places.end()) local.emplace_back(name, held_part(impl_->layout, *found->second, impl_->groups).piece);
  }
  return local;
}

std::vector<comm::Shard> ShardedOptimizer::shards_of(const NamedTensors& local) const {
  const auto places = places_by_parameter(impl_->layout);
  std::map<std::string, const Place*> by_name;
  for (const auto& [name, tensor] : impl_->model.named_parameters()) {
    const auto found = places.find(tensor.unsafeGetTensorImpl());
    if (found != places.end()) by_name.emplace(name, found->second);
  }
  std::vector<comm::Shard> shards;
  for (const auto& [name, tensor] : local) {
    const auto found = by_name.find(name);
    TORCH_CHECK_VALUE(found != by_name.end(), "ShardedOptimizer::shards_of: no sharded parameter is called \"", name,
                      "\".");
    const Place held = held_part(impl_->layout, *found->second, impl_->groups);
    TORCH_CHECK_VALUE(tensor.dim() == 1 && tensor.numel() == held.count, "ShardedOptimizer::shards_of: expected ",
                      held.count, " elements of \"", name, "\" on this rank, got a tensor ", tensor.sizes(), ".");
    for (const auto& [spec, part] : held.boxes(tensor)) shards.push_back({name, part, spec});
  }
  return shards;
}

void ShardedOptimizer::gather_parameters() {
  if (impl_->sharded_parameters) impl_->sharded_parameters->gather_all();
}

void ShardedOptimizer::release_parameters() {
  if (impl_->sharded_parameters) impl_->sharded_parameters->release();
}

void ShardedOptimizer::with_full_parameters(const std::function<void()>& body) {
  if (!impl_->sharded_parameters) return body();
  impl_->sharded_parameters->with_all(body);
  bump_versions();
}

bool ShardedOptimizer::takes_grad_scale() const {
  const auto* scaled = dynamic_cast<const ScaledStep*>(impl_->local.get());
  return scaled && scaled->takes_grad_scale();
}

void ShardedOptimizer::set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) {
  TORCH_CHECK_VALUE(
      dynamic_cast<ScaledStep*>(impl_->local.get()),
      "ShardedOptimizer::set_grad_scale: the optimizer does not support a gradient scale. Call unscale_() first.");
  impl_->grad_scale = std::move(grad_scale);
  impl_->found_inf = std::move(found_inf);
}

OffloadedBytes ShardedOptimizer::offloaded_bytes() const {
  OffloadedBytes bytes;
  if (impl_->bucket_steps) {
    impl_->bucket_steps->wait();
    const optim::OffloadedStateStats stats = impl_->bucket_steps->stats();
    bytes = {.file_bytes = stats.file_bytes, .resident_bytes = stats.resident_bytes};
  }
  return bytes;
}

NamedTensors ShardedOptimizer::local_state() const {
  copy_options_to_local();
  return optim::state_dict(*impl_->local);
}

void ShardedOptimizer::load_local_state(const NamedTensors& state) {
  optim::load_state_dict(*impl_->local, state);
  if (impl_->bucket_steps) impl_->bucket_steps->state_loaded();
  copy_options_to_groups();
}

namespace {

/// The options of a bucket's complete parameters: its shard may be in page-locked memory of the host.
at::TensorOptions complete_options(const Unit& unit) {
  return unit.shard.options().device(unit.flat.device()).pinned_memory(false);
}

void unshard(ShardedOptimizer::Impl& impl) {
  const c10::NoGradGuard no_grad;
  impl.gradients.reset(), impl.sharded_parameters.reset(), impl.bucket_steps.reset();
  NamedTensors options = optim::state_dict(*impl.local);
  std::erase_if(options, [](const auto& item) { return item.first.starts_with("state."); });
  optim::load_state_dict(*impl.local, options);  // drops master weights and scales, too
  impl.local->state().clear();
  for (const Place& place : impl.layout.places) {
    const at::Tensor& parameter = place.parameter;
    const Unit& unit = impl.layout.units[place.unit];
    parameter.mutable_grad().reset();  // see no_sync()
    if (!unit.shard.defined()) continue;
    at::Tensor(parameter).set_data(at::empty_strided(parameter.sizes(), parameter.strides(), complete_options(unit)));
  }
  auto parameter = impl.parameters.begin();
  for (auto& group : impl.local->param_groups()) {
    for (at::Tensor& piece : group.params()) piece = *parameter++;
  }
}

}  // namespace

std::shared_ptr<torch::optim::Optimizer> ShardedOptimizer::unshard() {
  drop_gradients();
  parallel::unshard(*impl_);
  copy_options_to_local();
  return impl_->local;
}

void ShardedOptimizer::copy_options_to_local() const {
  for (size_t g = 0; g < param_groups_.size(); ++g)
    impl_->local->param_groups()[g].set_options(param_groups_[g].options().clone());
}

void ShardedOptimizer::copy_options_to_groups() {
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    param_groups_[g].set_options(impl_->local->param_groups()[g].options().clone());
  }
}

void ShardedOptimizer::save(torch::serialize::OutputArchive&) const {
  TORCH_CHECK_VALUE(false,
                    "ShardedOptimizer::save: an archive cannot store shards. Save the complete state of "
                    "optim::state_dict(optimizer), or state_shards().");
}

void ShardedOptimizer::load(torch::serialize::InputArchive&) {
  TORCH_CHECK_VALUE(false,
                    "ShardedOptimizer::load: an archive cannot store shards. Load the result of optim::state_dict() "
                    "with optim::load_state_dict().");
}

namespace {

/// The parameter index in "state.<i>.<field>"; none for other names.
std::optional<size_t> parameter_index(const std::string& name) {
  const auto parts = optim::split_state_name(name);
  return parts ? std::optional(parts->first) : std::nullopt;
}

/// Sorts by parameter, as optim::state_dict() does. Entries without a parameter come last.
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

/// Number of elements of a sharded parameter that share a scale; 0 if its state is not low-bit.
int64_t low_bit_block(const torch::optim::Optimizer& local, const Place& place) {
  const auto* ours = dynamic_cast<const optim::LibtorchOptimizer*>(&local);
  return ours ? ours->state_block(place.piece) : 0;
}

/// Scales, and codes with less than one byte per element, are counted in blocks. Returns this rank's run of them; none
/// for other state.
std::optional<comm::ShardSpec> run_of_blocks(const torch::optim::Optimizer& local, const Place* place,
                                             std::string_view name, at::ScalarType dtype) {
  const int64_t block = place ? low_bit_block(local, *place) : 0;
  if (block == 0) return std::nullopt;
  int64_t width = dtype == at::kByte ? dynamic_cast<const optim::LibtorchOptimizer&>(local).state_block_bytes() : block;
  if (name.ends_with(scales_suffix)) width = 1;
  if (width == block) return std::nullopt;
  const auto blocks = [&](int64_t elements) { return (elements + block - 1) / block * width; };
  return comm::ShardSpec{{blocks(place->parameter.numel())}, {place->begin / block * width}, {blocks(place->count)}};
}

/// The part that a state tensor holds: a run of blocks, elements of a parameter, or a complete tensor.
Parts parts_of(const std::optional<comm::ShardSpec>& run, const Place* place, const at::Tensor& tensor) {
  if (run) return {{*run, tensor}};
  return place ? place->boxes(tensor) : whole(tensor);
}

/// Throws if a moment's kind (low-bit or floating-point) differs from that of this optimizer.
void check_kind(const torch::optim::Optimizer& local, const Place& place, const SavedTensor& saved) {
  if (c10::multiply_integers(saved.sizes) <= 1 || saved.name.ends_with(master_suffix)) return;
  const bool low_bit = saved.dtype == at::kByte || saved.name.ends_with(scales_suffix);
  TORCH_CHECK_VALUE(low_bit == (low_bit_block(local, place) > 0), "ShardedOptimizer: \"", saved.name, "\" is ",
                    low_bit ? "low-bit" : "floating-point",
                    " state, but this optimizer has another kind of state for parameter \"", place.name,
                    "\". Construct it with the state_dtype and min_8bit_size of the saved one.");
  const bool row_major =
      saved.strides.empty() || at::IntArrayRef(saved.strides).equals(c10::contiguous_strides(saved.sizes));
  TORCH_CHECK_VALUE(!low_bit || row_major, "ShardedOptimizer: \"", saved.name, "\" has strides [",
                    c10::Join(", ", saved.strides), "], but parameter \"", place.name,
                    "\" is row-major. Low-bit blocks follow the memory layout. Convert the model to the memory layout "
                    "of the saved run.");
}

}  // namespace

std::vector<comm::Shard> ShardedOptimizer::state_shards() const {
  const NamedTensors state = optim::state_dict(*impl_->local);
  std::vector<comm::Shard> shards;
  shards.reserve(state.size());
  for (const auto& [name, tensor] : state) {
    TORCH_CHECK_VALUE(name != "archive",
                      "ShardedOptimizer: the state of a user-defined optimizer class cannot be split.");
    const std::optional<size_t> index = parameter_index(name);
    const Place* place = index ? impl_->places[*index] : nullptr;
    const auto run = run_of_blocks(*impl_->local, place, name, tensor.scalar_type());
    const bool elements = place && tensor.dim() == 1 && tensor.numel() == place->count;
    for (auto& [spec, local] : parts_of(run, elements ? place : nullptr, tensor)) shards.push_back({name, local, spec});
  }
  return shards;
}

NamedTensors ShardedOptimizer::state_dict() const {
  NamedTensors state = comm::gather(state_shards(), impl_->groups.divide_state ? impl_->all : impl_->groups.shard);
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
                      "\", but the optimizer has ", impl_->places.size(),
                      " parameters. The state belongs to another optimizer or model.");
    const Place* place = index ? impl_->places[*index] : nullptr;
    if (place) check_kind(*impl_->local, *place, tensor);
    const auto run = run_of_blocks(*impl_->local, place, name, tensor.dtype);
    const std::vector<int64_t> expected = run ? run->sizes : place ? place->parameter.sizes().vec() : sizes;
    TORCH_CHECK_VALUE(
        sizes == expected || (!run && c10::multiply_integers(sizes) == 1), "ShardedOptimizer: \"", name,
        "\" has sizes [", c10::Join(", ", sizes), "], but parameter \"", place->name, "\" has [",
        c10::Join(", ", expected), "]. The state belongs to another model",
        run || tensor.dtype == at::kByte ? ", or was saved with another block size or state_dtype." : ".");
    if (place && place->count == 0) continue;  // belongs to another rank
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
      TORCH_CHECK_VALUE(
          found != parts.end() && found->second.sizes() == view.sizes(),
          "ShardedOptimizer::load_shards: expected the shards that wanted_shards() returned, but a shard of \"", name,
          "\" is missing.");
      view.copy_(found->second);
    }
    state.emplace_back(name, run);
  }
  optim::load_state_dict(*impl_->local, state);
  if (impl_->bucket_steps) impl_->bucket_steps->state_loaded();
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

namespace {

/// The parameters of the model: those whose gradients are sharded, those that are only gathered, and the others.
struct ParameterLists {
  NamedTensors trained, frozen, rest;
};

/// Collective.
ParameterLists list_parameters(const ShardedOptimizer::Impl& impl) {
  ParameterLists lists;
  create_on_all_ranks(impl.all, [&] {
    lists.trained = trained(impl.model, impl.parameters);
    if (impl.options.shard_frozen) lists.frozen = frozen(impl.model);
    if (impl.options.shard_frozen || !impl.options.weights_file.empty()) check_first(impl.model);
  });
  NamedTensors all = lists.trained;
  all.insert(all.end(), lists.frozen.begin(), lists.frozen.end());
  lists.rest = not_sharded(impl.model, all);
  all.insert(all.end(), lists.rest.begin(), lists.rest.end());
  check_same_tensors(all, impl.model, impl.all);
  return lists;
}

/// Creates the files for shards of parameters and gradients. Collective.
void create_files(ShardedOptimizer::Impl& impl) {
  const ShardOptions& options = impl.options;
  const bool on_cpu = impl.layout.units.front().flat.is_cpu();
  TORCH_CHECK_VALUE(on_cpu || options.offload_state == Offload::none || options.offload_parameters != Offload::none,
                    "zero_optimizer: on an accelerator, offload_state needs offload_parameters, because the host "
                    "updates only shards that it holds. Set offload_parameters to Offload::host or Offload::file.");
  impl.memory.host = !on_cpu && options.offload_parameters == Offload::host;
  const bool gradients = options.stage > 1 && options.offload_state == Offload::file;
  if (options.offload_parameters != Offload::file && !gradients) return;
  const auto bytes = [&](size_t units, int parts) {
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < units; ++i) {
      const Unit& unit = impl.layout.units[i];
      sizes.push_back(unit.slice / parts * static_cast<int64_t>(unit.flat.element_size()));
    }
    return sizes;
  };
  create_on_all_ranks(impl.all, [&] {
    const auto make = [&](const std::vector<int64_t>& sizes, const char* user) {
      return std::make_shared<BucketFile>(sizes, options.offload_folder, options.offload_window_bytes, user);
    };
    if (options.offload_parameters == Offload::file)
      impl.memory.file = make(bytes(impl.layout.units.size(), 1), "offload_parameters");
    if (gradients)
      impl.gradient_file = make(bytes(impl.layout.trained_units, impl.groups.state_parts()), "offload_state");
  });
}

void read_shards(ShardedOptimizer::Impl& impl, const WeightsSource& weights) {
  for (size_t i = 0; i < impl.layout.units.size(); ++i) {
    Unit& unit = impl.layout.units[i];
    unit.shard = impl.memory.allocate(impl.layout, i);
    read_shard(unit, impl.layout.places, impl.groups.shard.rank(), weights);
    impl.memory.finish(i);
  }
}

/// Moves the parameters into buckets, and gives all ranks the same values. Collective.
void distribute_parameters(ShardedOptimizer::Impl& impl, const ParameterLists& lists) {
  const ShardOptions& options = impl.options;
  LayoutOptions how{options.bucket_bytes, block_of(*impl.local, lists.trained), options.units};
  std::optional<WeightsSource> weights;
  if (!options.weights_file.empty()) weights.emplace(options.weights_file, impl.model, impl.all);
  how.empty = weights.has_value() || options.uninitialized;
  impl.layout = lay_out(lists.trained, lists.frozen, impl.groups, how);
  create_files(impl);
  if (weights) {
    create_on_all_ranks(impl.all, [&] {
      read_shards(impl, *weights);
      read(lists.rest, *weights);
      read(impl.model.named_buffers(), *weights);
    });
  }
  if (!options.uninitialized) broadcast_from_first(impl.layout, lists.rest, impl.model, impl.all);
  const bool offloads = impl.memory.file || impl.memory.host;
  if (options.stage == 3 && (impl.all.size() > 1 || options.parameter_dtype || weights || offloads)) {
    impl.sharded_parameters = std::make_unique<ParameterShards>(
        impl.layout, impl.groups,
        ParameterShards::Options{options.reshard_after_forward, options.gathered_frozen_bytes, options.parameter_dtype,
                                 impl.memory});
  }
}

/// Ends the sharding. Parameters and optimizer then have the values that they had at its start. Collective.
void unshard_with_values(ShardedOptimizer::Impl& impl, const NamedTensors& state) {
  const c10::NoGradGuard no_grad;
  unshard(impl);
  for (const Unit& unit : impl.layout.units) {
    if (!unit.shard.defined()) continue;  // the parameters have kept their values
    const at::Tensor all = at::empty({unit.flat.numel()}, complete_options(unit));
    all.narrow(0, unit.slice * impl.groups.shard.rank(), unit.slice).copy_(unit.shard);
    comm::all_gather_in_place(all, impl.groups.shard);
    for (const size_t index : unit.places) {
      const Place& place = impl.layout.places[index];
      at::Tensor(place.parameter).set_data(place.view_of(all).clone());
    }
  }
  if (!state.empty()) optim::load_state_dict(*impl.local, state);
}

/// Shards gradients, and lets the optimizer step bucket by bucket if shards, gradients or state are in files. If this
/// fails on one rank, no rank's parameters are sharded any more. Collective.
void create_gradients_and_steps(ShardedOptimizer::Impl& impl, const NamedTensors& state) {
  const ShardOptions& options = impl.options;
  const bool in_files = options.offload_parameters == Offload::file || options.offload_state == Offload::file;
  if (options.stage == 1 && !in_files) return;
  try {
    create_on_all_ranks(impl.all, [&] {
      if (options.stage > 1) {
        impl.gradients = std::make_unique<GradientShards>(impl.layout, impl.groups, impl.all, options.reduce_dtype,
                                                          impl.gradient_file);
      }
      if (!in_files) return;
      impl.bucket_steps = std::make_unique<BucketSteps>(*impl.local, impl.layout, impl.memory.file, impl.gradient_file);
      if (options.offload_state == Offload::file)
        impl.bucket_steps->offload_state(options.offload_folder, options.offload_window_bytes);
    });
  } catch (...) {
    unshard_with_values(impl, state);
    throw;
  }
}

}  // namespace

std::shared_ptr<ShardedOptimizer> zero_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, const Model& model,
                                                 const comm::Group& group, const ShardOptions& options) {
  check_same_shard_options(options, group);
  const comm::Group all = options.replicas ? comm::combine(group, *options.replicas, "replicas") : group;
  create_on_all_ranks(all, [&] { check_shardable(optimizer.get(), options); });
  std::vector<at::Tensor> parameters = parameters_of(*optimizer);
  auto impl = std::make_unique<ShardedOptimizer::Impl>(
      ShardedOptimizer::Impl{.local = std::move(optimizer),
                             .groups = {group, options.replicas, options.shard_state_over_replicas},
                             .all = all,
                             .options = options,
                             .model = model,
                             .parameters = std::move(parameters)});
  const ParameterLists lists = list_parameters(*impl);
  NamedTensors state;
  create_on_all_ranks(all, [&] { state = state_before(*impl->local); });
  distribute_parameters(*impl, lists);
  put_pieces(*impl);
  create_gradients_and_steps(*impl, state);
  auto sharded = std::make_shared<ShardedOptimizer>(std::move(impl));
  if (!state.empty()) sharded->load_state_dict(state);
  return sharded;
}

}  // namespace bellows::parallel
