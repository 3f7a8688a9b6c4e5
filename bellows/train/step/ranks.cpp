#include "bellows/train/step/ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/rng.h"
#include "bellows/checkpoint/sharded.h"
#include "bellows/comm/collectives.h"
#include "bellows/comm/mesh.h"
#include "bellows/core/seed.h"
#include "bellows/core/sharded_gradients.h"
#include "bellows/optim/state/state.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/ddp/same_model.h"
#include "bellows/parallel/ddp/same_weights.h"
#include "bellows/parallel/hooks/hooks.h"
#include "bellows/parallel/sync_batch_norm.h"
#include "bellows/parallel/zero/shard_layout.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "bellows/system/allocator_reuse.h"
#include "bellows/train/recipe/context_keys.h"
#include "bellows/train/recipe/pipeline_keys.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/recipe/replica_keys.h"
#include "bellows/train/recipe/tensor_keys.h"
#include "bellows/train/step/context_ranks.h"
#include "bellows/train/step/pipeline_ranks.h"
#include "bellows/train/step/tensor_ranks.h"
#include "bellows/train/task.h"

namespace bellows::train {

using parallel::DistributedDataParallel;

struct Ranks::State {
  comm::Group group;
  Model model;
  std::optional<comm::Mesh> mesh = {};
  std::optional<comm::Group> samples = {};       ///< ranks that read different samples; empty if all read the same ones
  std::optional<comm::Group> same_samples = {};  ///< ranks that draw the same masks as this one; empty: none
  std::unique_ptr<TensorRanks> tensor = {};      ///< with a mesh axis `tensor`
  std::unique_ptr<PipelineRanks> pipeline = {};  ///< with a mesh axis `pipeline`
  std::unique_ptr<ContextRanks> context = {};    ///< with a mesh axis `context`
  std::string strategy;
  DataPrints prints{};
  uint64_t seed = 0;                           ///< that of the recipe
  bool elastic = false;                        ///< ranks can be lost and replaced
  bool skips_samples = false;                  ///< the other ranks do not know which ones
  bool fills_in_order = false;                 ///< see data::Division
  bool synchronizes_norms = false;             ///< the model has synchronized batch norms
  std::optional<DistributedDataParallel> ddp;  ///< empty if backward shards gradients, or updates parameters
  std::vector<std::shared_ptr<parallel::ShardedOptimizer>> sharded_parameters;  ///< with zero3
  std::vector<std::shared_ptr<parallel::ShardedOptimizer>> accumulating;        ///< exchange gradients once per step
  std::vector<std::shared_ptr<const void>> quiet;  ///< guards, while gradients are not exchanged
  std::vector<at::Tensor> trained;
};

namespace {

std::shared_ptr<parallel::GradientHook> hook_of(const Recipe& recipe) {
  if (recipe.reproducible_ranks > 0) return parallel::pairwise_hook();
  const std::string& name = recipe.gradient_compression;
  if (name == "bf16") return parallel::bf16_hook();
  if (name == "fp16") return parallel::fp16_hook();
  if (name == "int8") return parallel::int8_hook();
  if (name == "power_sgd") return parallel::power_sgd_hook();
  if (name == "top_k") return parallel::top_k_hook();
  return nullptr;
}

/// The settings that must be equal on all ranks, one per line. File locations may differ between machines.
std::vector<std::string> common_part(const Job& job, const DataPrints& prints) {
  const std::set<std::string_view> own = {"data",
                                          "eval_data",
                                          "subset",
                                          "weights",
                                          "model",
                                          "device",
                                          "num_workers",
                                          "prefetch",
                                          "image_cache_mb",
                                          "run_folder",
                                          "offload_folder",
                                          "offload_reserve_mb",
                                          "offload_shard_folder"};
  std::vector<std::string> lines = {
      "training data: " + prints.train, "held-out data: " + (job.eval ? prints.eval : "none"),
      std::string("checkpoints: ") + (job.recipe.run_folder.empty() ? "none" : "in a run_folder")};
  std::istringstream yaml(job.recipe.to_yaml());
  for (std::string line; std::getline(yaml, line);) {
    if (!own.contains(std::string_view(line).substr(0, line.find(':')))) lines.push_back(line);
  }
  return lines;
}

void check_same_recipe(const Job& job, const DataPrints& prints, const comm::Group& group) {
  parallel::check_same_lines("train: the ranks have different settings or data", "line", common_part(job, prints),
                             group, "Use the same recipe and the same data on all ranks.");
}

void check_backward_steps(const Job& job) {
  if (!job.recipe.optimizer_in_backward) return;
  const std::string conflict = backward_steps_conflict(job.recipe);
  TORCH_CHECK_VALUE(conflict.empty(), "train: optimizer_in_backward = true with ", job.ranks->size(), " ranks, but ",
                    conflict, ". Set optimizer_in_backward: false, or change the other setting.");
  for (const auto& optimizer : job.optimizers) {
    TORCH_CHECK_VALUE(optim::has_named_state(*optimizer), "train: optimizer_in_backward = true with ",
                      job.ranks->size(), " ranks updates flat parts of parameters, which an optimizer class of your ",
                      "own may not support. Use an optimizer of Bellows or libtorch, or set ",
                      "optimizer_in_backward: false.");
  }
}

void check_batch_per_rank(const Job& job) {
  const int64_t per_rank = job.recipe.batch_size_per_rank;
  const int64_t ranks = data_ranks(job.recipe, job.ranks ? job.ranks->size() : 1);
  const int64_t batch = job.train.loader_options().batch_size;
  TORCH_CHECK_VALUE(per_rank == 0 || batch == per_rank * ranks, "train: batch_size_per_rank = ", per_rank, " needs ",
                    "batches of ", per_rank * ranks, " samples with ", ranks, ranks == 1 ? " rank" : " ranks",
                    ", but the data has batches of ", batch, ". Set the batch of the data, or batch_size_per_rank: 0.");
}

parallel::Offload offload_of(const std::string& place) {
  if (place == "file") return parallel::Offload::file;
  return place == "host" ? parallel::Offload::host : parallel::Offload::none;
}

parallel::ShardOptions shard_options(const Recipe& recipe, int stage) {
  return {.stage = stage,
          .bucket_bytes = recipe.bucket_mb << 20,
          .units = split_list(recipe.shard_units),
          .reshard_after_forward = recipe.reshard_after_forward,
          .offload_parameters = offload_of(recipe.offload_parameters),
          .offload_state = offload_of(recipe.offload_state),
          .offload_folder = recipe.offload_shard_folder};
}

/// The mesh of the job's ranks. If ranks were lost, fewer replicas are left.
std::vector<comm::MeshAxis> mesh_of(const Job& job) {
  std::vector<comm::MeshAxis> axes = parse_mesh(job.recipe.mesh);
  if (job.elastic) axes.front().size = job.ranks->size() / axes.back().size;
  return axes;
}

/// Returns the ranks with the coordinates of this rank on all other axes; nothing if it is the only one. Collective.
std::optional<comm::Group> ranks_along(const comm::Mesh& mesh, const std::vector<std::string>& axes) {
  std::optional<comm::Group> ranks;
  for (const std::string& axis : axes) {
    if (axis_size(mesh.axes(), axis) == 1) continue;
    ranks = ranks ? comm::combine(*ranks, mesh.group(axis), axis) : mesh.group(axis);
  }
  return ranks;
}

/// The ranks that divide the state of this rank's part of the model, and those with the same share of it. Collective.
parallel::ShardGroups shard_groups(const comm::Group& all, const std::optional<comm::Mesh>& mesh) {
  if (!mesh) return {all};
  const std::vector<comm::MeshAxis>& axes = mesh->axes();
  const bool has_copies = std::any_of(axes.begin(), axes.end(), [](const auto& axis) { return axis.name == "shard"; });
  const std::string axis = has_copies ? "shard" : "data";
  // Ranks that divide sequences have complete parameters, so they divide the state, too.
  const std::optional<comm::Group> ranks = ranks_along(*mesh, {axis, "context"});
  parallel::ShardGroups groups{ranks ? *ranks : mesh->group(axis)};
  if (has_copies && mesh->size("data") > 1) groups.replicas = mesh->group("data");
  return groups;
}

/// Modules whose parameters belong to other ranks of a pipeline are no units of this rank.
void leave_out_units_of_other_stages(parallel::ShardOptions& options, const Model& model, const Model& held) {
  std::erase_if(options.units, [&](const std::string& pattern) {
    return !parallel::matches_module(held.named_parameters(), pattern) &&
           parallel::matches_module(model.named_parameters(), pattern);
  });
}

/// Gives all ranks of a group the random generators of its first rank, so that they draw the same masks.
void share_generators(const comm::Group& group) {
  NamedTensors states = checkpoint::rng_state();
  for (auto& [name, state] : states) state = comm::broadcast(state.clone(), 0, group);
  checkpoint::set_rng_state(states);
}

/// See Ranks::local_model().
class LocalModel final : public ModelWrapper {
 public:
  LocalModel(Model inner, const NamedTensors& local)
      : ModelWrapper(std::move(inner)), local_(local.begin(), local.end()) {}
  NamedTensors named_parameters() const override {
    NamedTensors result = inner().named_parameters();
    for (auto& [name, tensor] : result) {
      if (const auto found = local_.find(name); found != local_.end()) tensor = found->second;
    }
    return result;
  }

 private:
  std::map<std::string, at::Tensor> local_;
};

}  // namespace

Ranks::Ranks(Job& job) : model_(job.model) {
  const Recipe& recipe = job.recipe;
  check_batch_per_rank(job);
  if (job.elastic) {  // the data may be divided among the ranks of an earlier world
    job.train = job.train.distributed(0, 1, /*global_batch=*/true);
    if (job.eval) job.eval = job.eval->distributed(0, 1, /*global_batch=*/true);
  }
  if (!job.ranks || job.ranks->size() == 1) return;
  check_one_process(recipe, job.ranks->size());
  check_backward_steps(job);
  TORCH_CHECK_VALUE(
      !recipe.sample_stats,
      "train: sample_stats works only with one process. Set sample_stats: false, or train with one process.");
  state_ = std::make_unique<State>(State{.group = *job.ranks, .model = job.model, .strategy = recipe.data_parallel});
  state_->seed = static_cast<uint64_t>(recipe.seed);
  const comm::Group& group = state_->group;
  state_->prints = job.prints ? *job.prints : train::data_prints(job);
  check_same_recipe(job, state_->prints, group);
  state_->elastic = job.elastic != nullptr;
  state_->fills_in_order = recipe.reproducible_ranks > 0;
  state_->skips_samples = job.train.loader_options().on_bad_sample == data::OnBadSample::skip;
  state_->samples = group;
  if (!recipe.mesh.empty()) state_->mesh.emplace(group, mesh_of(job));
  if (ranks_per_sample(recipe) > 1) divide_work(job);
  job.train = job.train.distributed(data_rank(), data_size(), /*global_batch=*/true);
  if (job.eval) job.eval = job.eval->distributed(data_rank(), data_size(), /*global_batch=*/true);
  if (recipe.sync_batch_norm && data_group())
    state_->synchronizes_norms = parallel::convert_sync_batch_norm(job.model, *data_group()) > 0;
  exchange_gradients(job);
  for (const at::Tensor& parameter : job.model.parameters()) {
    if (parameter.requires_grad()) state_->trained.push_back(parameter);
  }
  // All ranks initialized the same weights, but ranks with different samples need different dropout masks.
  if (data_group()) seed_everything(rank_seed(state_->seed, data_rank()));
  if (state_->same_samples) share_generators(*state_->same_samples);
}

/// Returns the ranks over which gradients are averaged: those that read different samples and, if ranks divide
/// sequences, those that compute the other parts of the gradients. They have the same slices of the layers. Collective.
std::optional<comm::Group> Ranks::gradient_ranks() const {
  if (!divides_sequences()) return state_->samples;
  if (!state_->tensor) return state_->group;
  return ranks_along(*state_->mesh, {"data", "shard", "context"});
}

/// Sets up DDP or ZeRO among the ranks that read different samples.
void Ranks::exchange_gradients(Job& job) {
  const Recipe& recipe = job.recipe;
  const int stage = recipe.data_parallel == "ddp" ? 0 : recipe.data_parallel.back() - '0';
  const auto averaging = pipeline() ? std::nullopt : gradient_ranks();  // a pipeline averages gradients itself
  if (stage < 2 && averaging && !recipe.optimizer_in_backward) {
    state_->ddp.emplace(job.model, *averaging,
                        parallel::DistributedOptions{.hook = hook_of(recipe), .bucket_bytes = recipe.bucket_mb << 20});
  }
  try {
    shard_optimizers(job, stage);
  } catch (...) {  // the job is divided again if the cause was a lost rank
    unshard(job);
    throw;
  }
}

/// Ranks that divide the model or sequences read the same samples.
void Ranks::divide_work(Job& job) {
  const comm::Mesh& mesh = *state_->mesh;
  const bool has_stages = pipeline_ranks(job.recipe) > 1;
  state_->samples = ranks_along(mesh, {"data", "shard"});
  if (has_stages) PipelineRanks::check(job);
  if (context_ranks(job.recipe) > 1) ContextRanks::check(job);
  if (tensor_ranks(job.recipe) > 1) {
    state_->same_samples = mesh.group("tensor");
    state_->tensor = std::make_unique<TensorRanks>(job, *state_->same_samples);
  }
  if (context_ranks(job.recipe) > 1) {
    const comm::Group& axis = mesh.group("context");
    state_->same_samples = state_->same_samples ? comm::combine(*state_->same_samples, axis, "masks") : axis;
    state_->context = std::make_unique<ContextRanks>(job, axis, state_->tensor.get());
  }
  if (has_stages)
    state_->pipeline =
        std::make_unique<PipelineRanks>(job, mesh, state_->samples, state_->tensor.get(), state_->context.get());
}

/// Replaces the optimizers by sharded ones; with DDP (stage 0), nothing happens. If parameters are updated in backward,
/// each rank of DDP is a replica with one shard, because libtorch's reducer keeps all gradients until the end. For the
/// same reason, ZeRO-1 is then ZeRO-2, which stores the same if no gradient is kept.
void Ranks::shard_optimizers(Job& job, int stage) {
  const Recipe& recipe = job.recipe;
  const bool replicates = stage == 0 && recipe.optimizer_in_backward;
  if (stage == 0 && !replicates) return;
  const comm::Group& group = state_->group;
  const parallel::ShardGroups groups =
      replicates ? parallel::ShardGroups{.shard = comm::subgroup(
                                             group, {group.ranks()[static_cast<size_t>(group.rank())]}, "shard"),
                                         .replicas = group}
                 : shard_groups(group, state_->mesh);
  for (auto& optimizer : job.optimizers) {
    parallel::ShardOptions options = shard_options(recipe, recipe.optimizer_in_backward ? std::max(stage, 2) : stage);
    if (pipeline()) leave_out_units_of_other_stages(options, model_, divided()->local_model());
    options.shard_frozen = recipe.shard_frozen && &optimizer == &job.optimizers.front();
    if (recipe.gathered_frozen_mb >= 0) options.gathered_frozen_bytes = recipe.gathered_frozen_mb << 20;
    options.replicas = groups.replicas;
    options.shard_state_over_replicas = recipe.shard_state_over_all && options.replicas;
    options.uninitialized = job.state_follows;
    if (!recipe.offload_shard_folder.empty()) return_freed_memory();
    auto sharded =
        parallel::zero_optimizer(optimizer, divided() ? divided()->local_model() : job.model, groups.shard, options);
    if (stage == 3) state_->sharded_parameters.push_back(sharded);
    if (!recipe.sync_each_batch) state_->accumulating.push_back(sharded);
    optimizer = std::move(sharded);
  }
}

Ranks::~Ranks() = default;

const comm::Group* Ranks::group() const {
  return state_ ? &state_->group : nullptr;
}

const comm::Group* Ranks::data_group() const {
  return state_ && state_->samples ? &*state_->samples : nullptr;
}

DividedModel* Ranks::divided() const {
  if (!state_) return nullptr;
  return state_->pipeline ? static_cast<DividedModel*>(state_->pipeline.get()) : state_->tensor.get();
}

bool Ranks::divides_model() const {
  return divided() != nullptr;
}

PipelineRanks* Ranks::pipeline() const {
  return state_ ? state_->pipeline.get() : nullptr;
}

bool Ranks::any_stage(bool own) const {
  if (!pipeline()) return own;
  return comm::all_reduce(at::scalar_tensor(own ? 1 : 0, at::kLong), state_->group).item<int64_t>() > 0;
}

bool Ranks::divides_sequences() const {
  return state_ && state_->context;
}

models::RunBlock Ranks::divided_blocks(models::RunBlock run) const {
  return divides_sequences() ? state_->context->divided(std::move(run)) : run;
}

std::shared_ptr<void> Ranks::forward_scope() const {
  return state_ && state_->tensor ? state_->tensor->scope() : nullptr;
}

Model Ranks::evaluated_model() const {
  return divided() ? divided()->evaluated_model() : model_;
}

std::optional<OutputRank> Ranks::output_rank() const {
  return pipeline() ? std::optional(pipeline()->output_rank()) : std::nullopt;
}

void Ranks::align_generators(int64_t step) const {
  if (state_ && state_->same_samples) share_generators(*state_->same_samples);
  if (!data_group() || state_->elastic || state_->fills_in_order) return;
  std::string own;
  for (const auto& [name, value] : checkpoint::rng_state())
    own.append(static_cast<const char*>(value.const_data_ptr()), value.nbytes());
  const std::vector<std::string> all = comm::all_gather_strings(own, *data_group());
  const auto self = all.begin() + data_group()->rank();
  if (std::find(all.begin(), self, own) != self)
    seed_everything(mix_seed(rank_seed(state_->seed, data_rank()), static_cast<uint64_t>(step)));
}

const DataPrints* Ranks::data_prints() const {
  return state_ ? &state_->prints : nullptr;
}

void Ranks::before_forward(bool last, bool all_have_samples) {
  // A rank without samples uses the parameters in another order.
  if (!all_have_samples) gather_parameters();
  if (!state_) return;
  state_->quiet.clear();  // left over from a batch that threw
  if (!last) {
    if (state_->ddp) state_->quiet.emplace_back(std::shared_ptr<const void>(new auto(state_->ddp->no_sync())));
    for (const auto& optimizer : state_->accumulating) state_->quiet.push_back(optimizer->no_sync());
  }
  if (state_->ddp) state_->ddp->before_forward();
}

void Ranks::before_backward(const at::Tensor& loss) {
  if (state_ && state_->ddp) state_->ddp->before_backward({loss});
}

void Ranks::after_backward() {
  if (state_) state_->quiet.clear();
}

std::vector<int> Ranks::ranks_with_other_weights() const {
  if (!state_ || shards_parameters() || divides_model()) return {};
  const at::NoGradGuard no_grad;
  const at::Tensor digests = parallel::weight_digests(state_->model.named_parameters(), state_->group);
  std::vector<int> others;
  for (const auto rank : c10::irange(size())) {
    if (!at::equal(digests[rank], digests[0])) others.push_back(rank);
  }
  return others;
}

void Ranks::before_evaluation() {
  if (state_ && !state_->pipeline) parallel::broadcast_buffers(state_->model, state_->group);
}

at::Tensor Ranks::loss_of_nothing() const {
  TORCH_CHECK_VALUE(
      !state_->synchronizes_norms, "train: rank ", rank(), " of ", size(),
      " has no sample in this step, but sync_batch_norm needs at least one sample per rank. Choose a batch_size that "
      "leaves enough samples for the last step of an epoch, use fewer ranks, or set sync_batch_norm: false.");
  at::Tensor loss;
  for (const at::Tensor& parameter : state_->trained) {
    const at::Tensor none = at::sum(parameter.reshape({-1}).narrow(0, 0, 0)).to(at::kFloat);
    loss = loss.defined() ? loss.add(none) : none;
  }
  return loss;
}

bool Ranks::has_equal_share(const data::Batch& batch, int64_t batch_size) const {
  const int64_t ranks = data_size();
  return !state_ || (!state_->skips_samples && batch_size % ranks == 0 && batch.size() * ranks == batch_size &&
                     batch.consumed() == (batch.index() + 1) * batch_size);
}

bool Ranks::shards_state() const {
  return state_ && (state_->strategy != "ddp" || divides_model());
}

NamedTensors Ranks::own_state(const torch::optim::Optimizer& optimizer) {
  const auto* sharded = dynamic_cast<const parallel::ShardedOptimizer*>(&optimizer);
  return sharded ? sharded->local_state() : optim::state_dict(optimizer);
}

void Ranks::load_own_state(torch::optim::Optimizer& optimizer, const NamedTensors& state) {
  auto* const sharded = dynamic_cast<parallel::ShardedOptimizer*>(&optimizer);
  sharded ? sharded->load_local_state(state) : optim::load_state_dict(optimizer, state);
}

void Ranks::load_complete_state(torch::optim::Optimizer& optimizer, const NamedTensors& state) const {
  divided() ? divided()->load_complete_state(optimizer, state) : optim::load_state_dict(optimizer, state);
}

void Ranks::load_complete_model(const NamedTensors& values) const {
  with_full_parameters([&] {
    divided() ? checkpoint::restore_model(divided()->local_model(), divided()->local_parts(values))
              : checkpoint::restore_model(model_, values);
  });
}

void Ranks::complete_parameters() const {
  gather_parameters();
  if (divided()) divided()->complete_parameters();
}

void Ranks::unshard(Job& job) {
  if (state_) {
    state_->quiet.clear();  // refer to the optimizers
    state_->sharded_parameters.clear();
    state_->accumulating.clear();
  }
  for (auto& optimizer : job.optimizers) {
    if (const auto sharded = std::dynamic_pointer_cast<parallel::ShardedOptimizer>(optimizer))
      optimizer = sharded->unshard();
  }
}

bool Ranks::shards_parameters() const {
  return state_ && !state_->sharded_parameters.empty();
}

void Ranks::gather_parameters() const {
  if (!state_) return;
  for (const auto& optimizer : state_->sharded_parameters) optimizer->gather_parameters();
}

void Ranks::release_parameters() const {
  if (!state_) return;
  for (const auto& optimizer : state_->sharded_parameters) optimizer->release_parameters();
}

void Ranks::with_full_parameters(const std::function<void()>& body) const {
  std::function<void()> call = body;
  if (shards_parameters()) {
    for (const auto& optimizer : state_->sharded_parameters)
      call = [call, optimizer] { optimizer->with_full_parameters(call); };
  }
  call();
}

bool Ranks::all_have_samples(const data::Batch& batch, int64_t batch_size) const {
  if (!state_ || state_->skips_samples) return !state_;
  const int64_t samples = batch.consumed() - batch.index() * batch_size;
  return samples >= data_size() && (samples == batch_size || !state_->fills_in_order);
}

Model Ranks::local_model() const {
  const Model held = divided() ? divided()->local_model() : model_;
  if (!shards_parameters()) return held;
  NamedTensors local;
  for (const auto& optimizer : state_->sharded_parameters) {
    for (auto& item : optimizer->local_parameters()) local.push_back(std::move(item));
  }
  return Model(model_.name(), std::make_shared<LocalModel>(held, local));
}

checkpoint::Parts Ranks::parts_of(const NamedTensors& local) const {
  return divided() ? divided()->complete_shards(shards_of(local)) : shards_of(local);
}

/// Describes tensors like parts_of(), but as parts of the tensors that ranks hold which divide the model.
checkpoint::Parts Ranks::shards_of(const NamedTensors& local) const {
  if (!shards_parameters()) return checkpoint::whole_parts(local);
  std::map<std::string, at::Tensor> rest(local.begin(), local.end());
  checkpoint::Parts parts;
  for (const auto& optimizer : state_->sharded_parameters) {
    NamedTensors own = optimizer->local_parameters();
    std::erase_if(own, [&](const auto& item) { return !rest.contains(item.first); });
    for (auto& [name, tensor] : own) tensor = rest.extract(name).mapped();
    for (comm::Shard& shard : optimizer->shards_of(own)) parts.push_back(std::move(shard));
  }
  for (checkpoint::Part& part : checkpoint::whole_parts({rest.begin(), rest.end()})) parts.push_back(std::move(part));
  return parts;
}

NamedTensors Ranks::local_parts(const NamedTensors& complete) const {
  const NamedTensors held = divided() ? divided()->local_parts(complete) : complete;
  if (!shards_parameters()) return held;
  NamedTensors local = local_model().state_dict();
  const std::map<std::string, at::Tensor> whole(held.begin(), held.end());
  std::erase_if(local, [&](const auto& item) { return !whole.contains(item.first); });
  for (auto& [name, tensor] : local) tensor = at::empty(tensor.sizes(), whole.at(name).options());
  for (const auto& [name, part, spec] : shards_of(local)) at::Tensor(part).copy_(comm::part_of(whole.at(name), spec));
  return local;
}

std::vector<comm::Shard> Ranks::parts_of(const torch::optim::Optimizer& optimizer) const {
  if (divided()) return divided()->parts_of(optimizer);
  if (const auto* sharded = dynamic_cast<const parallel::ShardedOptimizer*>(&optimizer)) return sharded->state_shards();
  return checkpoint::whole_parts(optim::state_dict(optimizer));
}

NamedTensors Ranks::state() const {
  // When a rank is lost, the exchange is in the middle of a step. Other ranks have other buckets anyway.
  return state_ && state_->ddp && !state_->elastic ? state_->ddp->state() : NamedTensors();
}

void Ranks::restore(const NamedTensors& state) {
  if (state_ && state_->ddp) state_->ddp->restore(state);
}

std::string Ranks::describe() const {
  if (!state_) return "";
  return c10::str(state_->strategy, ": ", state_->ddp ? state_->ddp->describe() : c10::str(size(), " ranks"),
                  state_->mesh ? ", mesh " + state_->mesh->to_string() : "",
                  divided() ? ", " + divided()->describe() : "",
                  state_->context ? ", context parallelism: " + state_->context->describe() : "");
}

}  // namespace bellows::train
