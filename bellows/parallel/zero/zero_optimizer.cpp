#include "bellows/parallel/zero/zero_optimizer.h"

#include <c10/core/GradMode.h>
#include <c10/util/Type.h>

#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "bellows/comm/collectives.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/state.h"
#include "bellows/parallel/ddp/same_model.h"
#include "bellows/parallel/zero/zero_optimizer_impl.h"

namespace bellows::parallel {

namespace {

void check_shardable(const torch::optim::Optimizer* optimizer, const ShardOptions& options) {
  TORCH_CHECK_VALUE(options.stage == 1 || options.stage == 2, "shard_optimizer: expected stage 1 or 2, got ",
                    options.stage, ".");
  TORCH_CHECK_VALUE(options.bucket_bytes > 0, "shard_optimizer: expected bucket_bytes above 0, got ",
                    options.bucket_bytes, ".");
  TORCH_CHECK_VALUE(optimizer, "shard_optimizer: expected an optimizer, got null.");
  TORCH_CHECK_VALUE(!dynamic_cast<const ShardedOptimizer*>(optimizer),
                    "shard_optimizer: this optimizer is sharded already.");
  const std::string type = c10::demangle(typeid(*optimizer).name());
  TORCH_CHECK_VALUE(
      type.find("LBFGS") == std::string::npos && type.find("Adafactor") == std::string::npos, "shard_optimizer: ", type,
      " looks at whole gradients (norms, means of rows and columns), which no rank has. Use one that ",
      "treats each element by itself: AdamW with .state_dtype = int8 has 2 bytes a parameter, over all ranks.");
  const auto* ours = dynamic_cast<const optim::LibtorchOptimizer*>(optimizer);
  TORCH_CHECK_VALUE(!ours || !ours->lr_tensor().defined(), "shard_optimizer: the optimizer has an lr_tensor, which ",
                    "schedules could not reach through the sharded one. Set the groups' lr instead.");
  TORCH_CHECK_VALUE(!ours || !ours->rounds_at_random(), "shard_optimizer: stochastic rounding goes by the elements of ",
                    "whole parameters, of which each rank has pieces. Take master_weights instead of ",
                    "stochastic_rounding, or use DistributedDataParallel.");
}

/// What parameters may be cut at multiples of: with low-bit state elements that share a scale stay together.
int64_t block_of(const torch::optim::Optimizer& optimizer, const NamedTensors& to_shard) {
  const auto* ours = dynamic_cast<const optim::LibtorchOptimizer*>(&optimizer);
  int64_t block = 1;
  for (const auto& [name, parameter] : to_shard) {
    const int64_t own = ours ? ours->state_block(parameter) : 0;
    TORCH_CHECK_VALUE(own == 0 || parameter.is_contiguous(), "shard_optimizer: low-bit state can be cut where ",
                      "parameters are row-major, \"", name, "\" has shape ", parameter.sizes(), " and strides ",
                      parameter.strides(), ". Make it contiguous, or raise min_8bit_size above ", parameter.numel(),
                      ".");
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

/// Those of the model's parameters that the optimizer trains, each once, in the model's order.
NamedTensors trained(const Model& model, const std::vector<at::Tensor>& optimized) {
  std::unordered_set<const at::TensorImpl*> wanted, known;
  for (const at::Tensor& parameter : optimized) wanted.insert(parameter.unsafeGetTensorImpl());
  NamedTensors result;
  for (const auto& [name, parameter] : model.named_parameters()) {
    const at::TensorImpl* impl = parameter.unsafeGetTensorImpl();
    if (!known.insert(impl).second || !wanted.count(impl) || !parameter.requires_grad()) continue;
    TORCH_CHECK_VALUE(!gradient_part(parameter).owner, "shard_optimizer: parameter \"", name,
                      "\" is another sharded optimizer's. Each parameter has one.");
    result.emplace_back(name, parameter);
  }
  for (size_t i = 0; i < optimized.size(); ++i) {
    TORCH_CHECK_VALUE(known.count(optimized[i].unsafeGetTensorImpl()), "shard_optimizer: parameter ", i,
                      " of the optimizer, of shape ", optimized[i].sizes(), ", is none of model \"", model.name(),
                      "\". It belongs to another model, or amp::MasterWeights put it there: use master_weights of "
                      "bellows::optim instead.");
  }
  TORCH_CHECK_VALUE(!result.empty(), "shard_optimizer: the optimizer has no parameter of model \"", model.name(),
                    "\" that requires a gradient.");
  return result;
}

void check_same_tensors(NamedTensors tensors, const Model& model, const comm::Group& group) {
  for (const auto& buffer : model.named_buffers()) tensors.push_back(buffer);
  std::vector<std::string> lines;
  lines.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors)
    lines.push_back(c10::str(name, " ", tensor.scalar_type(), tensor.sizes(), ", strides ", tensor.strides()));
  check_same_lines("shard_optimizer: the ranks hold different parameters or buffers", "tensor", lines, group);
}

/// What the optimizer has to be given back once its parameters are pieces.
NamedTensors state_before(const torch::optim::Optimizer& optimizer) {
  NamedTensors state = optim::state_dict(optimizer);
  if (state.empty() || state.front().first != "archive") return state;
  TORCH_CHECK_VALUE(optimizer.state().empty(), "shard_optimizer: the state of a ",
                    c10::demangle(typeid(optimizer).name()), " cannot be taken apart. Shard it before its first step.");
  return {};
}

void broadcast_from_first(const Layout& layout, const Model& model, const comm::Group& group) {
  const c10::NoGradGuard no_grad;
  for (const Unit& unit : layout.units) comm::broadcast(unit.flat, 0, group);
  broadcast_buffers(model, group);
}

void put_pieces(ShardedOptimizer::Impl& impl) {
  std::unordered_map<const at::TensorImpl*, Place*> places;
  for (Place& place : impl.layout.places) places[place.parameter.unsafeGetTensorImpl()] = &place;
  auto* const ours = dynamic_cast<optim::LibtorchOptimizer*>(impl.local.get());
  for (auto& group : impl.local->param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      const auto found = places.find(parameter.unsafeGetTensorImpl());
      impl.places.push_back(found == places.end() ? nullptr : found->second);
      if (!impl.places.back()) continue;
      parameter = impl.places.back()->piece;
      if (ours) ours->set_whole_numel(parameter, impl.places.back()->parameter.numel());
    }
  }
}

/// The groups that the caller sees.
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

at::Tensor ShardedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const c10::NoGradGuard no_grad;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    impl_->local->param_groups()[g].set_options(param_groups_[g].options().clone());
  }
  TORCH_CHECK(!impl_->unfinished,
              "ShardedOptimizer::step: an earlier step() ended with an error while the weights were ",
              "updated, so the ranks may hold different weights. End all ranks and resume from the last checkpoint.");
  take_gradients();
  impl_->unfinished = true;
  impl_->local->step();
  drop_gradients();
  gather();
  impl_->unfinished = false;
  return loss;
}

void ShardedOptimizer::take_gradients() {
  if (impl_->gradients) {
    const std::vector<bool> used = impl_->gradients->take_used();
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) impl_->layout.places[i].piece.mutable_grad().reset();
    }
  }
  for (size_t i = 0; i < impl_->places.size(); ++i) {
    Place* const place = impl_->places[i];
    const at::Tensor& gradient = impl_->parameters[i].grad();
    if (!gradient.defined()) continue;
    TORCH_CHECK_VALUE(!impl_->gradients || place, "ShardedOptimizer::step: parameter ", i, " of shape ",
                      gradient.sizes(),
                      " has a gradient, but was frozen when the optimizer was sharded. Shard it anew ",
                      "after parameters were unfrozen.");
    if (!place || impl_->gradients) continue;
    TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "ShardedOptimizer::step: parameter \"", place->name,
                      "\" has a sparse gradient, which cannot be sharded. Make the embedding's gradient dense "
                      "(sparse(false)), or leave it to an optimizer of its own.");
    if (place->count > 0) place->piece.mutable_grad() = place->run_of(gradient);
  }
}

void ShardedOptimizer::drop_gradients() {
  for (Place& place : impl_->layout.places) place.piece.mutable_grad().reset();
}

void ShardedOptimizer::gather() {
  std::vector<comm::Pending> pending;
  pending.reserve(impl_->layout.units.size());
  for (const Unit& unit : impl_->layout.units)
    pending.push_back(comm::all_gather_in_place_async(unit.flat, impl_->group));
  for (comm::Pending& one : pending) one.wait();
  // Autograd, and whatever else goes by versions, has to learn of it.
  for (const Place& place : impl_->layout.places) place.parameter.unsafeGetTensorImpl()->bump_version();
}

bool ShardedOptimizer::takes_grad_scale() const {
  const auto* scaled = dynamic_cast<const ScaledStep*>(impl_->local.get());
  return scaled && scaled->takes_grad_scale();
}

void ShardedOptimizer::set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) {
  auto* scaled = dynamic_cast<ScaledStep*>(impl_->local.get());
  TORCH_CHECK_VALUE(scaled, "ShardedOptimizer::set_grad_scale: the optimizer takes no scale. Call unscale_() first.");
  scaled->set_grad_scale(std::move(grad_scale), std::move(found_inf));
}

void ShardedOptimizer::copy_options_to_groups() {
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    param_groups_[g].set_options(impl_->local->param_groups()[g].options().clone());
  }
}

void ShardedOptimizer::save(torch::serialize::OutputArchive&) const {
  TORCH_CHECK_VALUE(false,
                    "ShardedOptimizer::save: an archive cannot hold parts. Save optim::state_dict(optimizer), the "
                    "whole state, or state_shards().");
}

void ShardedOptimizer::load(torch::serialize::InputArchive&) {
  TORCH_CHECK_VALUE(false,
                    "ShardedOptimizer::load: an archive cannot hold parts. Load what optim::state_dict() gave with "
                    "optim::load_state_dict().");
}

std::shared_ptr<ShardedOptimizer> shard_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                                  const Model& model, const comm::Group& group,
                                                  const ShardOptions& options) {
  check_shardable(optimizer.get(), options);
  std::vector<at::Tensor> parameters = parameters_of(*optimizer);
  const NamedTensors to_shard = trained(model, parameters);
  check_same_tensors(to_shard, model, group);
  const int64_t block = block_of(*optimizer, to_shard);
  const NamedTensors state = state_before(*optimizer);
  auto impl = std::make_unique<ShardedOptimizer::Impl>(ShardedOptimizer::Impl{
      .local = std::move(optimizer), .group = group, .options = options, .parameters = std::move(parameters)});
  impl->layout = lay_out(to_shard, group, options.bucket_bytes, block);
  broadcast_from_first(impl->layout, model, group);
  put_pieces(*impl);
  if (options.stage == 2) impl->gradients = std::make_unique<GradientShards>(impl->layout, group);
  auto sharded = std::make_shared<ShardedOptimizer>(std::move(impl));
  if (!state.empty()) sharded->load_state_dict(state);
  return sharded;
}

}  // namespace bellows::parallel
