#include "bellows/train/step/ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <optional>
#include <set>
#include <sstream>

#include "bellows/checkpoint/sharded.h"
#include "bellows/core/seed.h"
#include "bellows/core/sharded_gradients.h"
#include "bellows/optim/state/state.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/ddp/same_model.h"
#include "bellows/parallel/ddp/same_weights.h"
#include "bellows/parallel/hooks/hooks.h"
#include "bellows/parallel/sync_batch_norm.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "bellows/train/task.h"

namespace bellows::train {

using parallel::DistributedDataParallel;

struct Ranks::State {
  comm::Group group;
  Model model;
  std::string strategy;
  DataPrints prints{};
  bool skips_samples = false;                  ///< the other ranks do not know which ones
  bool fills_in_order = false;                 ///< see data::Division
  bool synchronizes_norms = false;             ///< the model has synchronized batch norms
  std::optional<DistributedDataParallel> ddp;  ///< empty with zero2 and zero3, whose backward shards gradients
  std::vector<std::shared_ptr<parallel::ShardedOptimizer>> sharded_parameters;  ///< with zero3
  std::unique_ptr<const DistributedDataParallel::NoSync> quiet;
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
  const std::set<std::string_view> own = {"data",           "eval_data",  "subset",         "weights",
                                          "model",          "device",     "num_workers",    "prefetch",
                                          "image_cache_mb", "run_folder", "offload_folder", "offload_reserve_mb"};
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

}  // namespace

Ranks::Ranks(Job& job) {
  if (!job.ranks || job.ranks->size() == 1) return;
  const Recipe& recipe = job.recipe;
  TORCH_CHECK_VALUE(
      !recipe.sample_stats,
      "train: sample_stats works only with one process. Set sample_stats: false, or train with one process.");
  state_ = std::make_unique<State>(State{.group = *job.ranks, .model = job.model, .strategy = recipe.data_parallel});
  const comm::Group& group = state_->group;
  state_->prints = train::data_prints(job);
  check_same_recipe(job, state_->prints, group);
  state_->fills_in_order = recipe.reproducible_ranks > 0;
  state_->skips_samples = job.train.loader_options().on_bad_sample == data::OnBadSample::skip;
  job.train = job.train.distributed(group.rank(), group.size(), /*global_batch=*/true);
  if (job.eval) job.eval = job.eval->distributed(group.rank(), group.size(), /*global_batch=*/true);
  if (recipe.sync_batch_norm) state_->synchronizes_norms = parallel::convert_sync_batch_norm(job.model, group) > 0;
  const int stage = recipe.data_parallel == "ddp" ? 0 : recipe.data_parallel.back() - '0';
  if (stage < 2) {
    state_->ddp.emplace(job.model, group,
                        parallel::DistributedOptions{.hook = hook_of(recipe), .bucket_bytes = recipe.bucket_mb << 20});
  }
  for (auto& optimizer : job.optimizers) {
    if (stage == 0) continue;
    auto sharded = parallel::zero_optimizer(optimizer, job.model, group,
                                            {.stage = stage,
                                             .bucket_bytes = recipe.bucket_mb << 20,
                                             .units = split_list(recipe.shard_units),
                                             .reshard_after_forward = recipe.reshard_after_forward});
    if (stage == 3) state_->sharded_parameters.push_back(sharded);
    optimizer = std::move(sharded);
  }
  for (const at::Tensor& parameter : job.model.parameters()) {
    if (parameter.requires_grad()) state_->trained.push_back(parameter);
  }
  // All ranks initialized the same weights, but each needs its own dropout masks. Rank 0 continues like a single
  // process.
  seed_everything(rank_seed(static_cast<uint64_t>(recipe.seed), group.rank()));
}

Ranks::~Ranks() = default;

const comm::Group* Ranks::group() const {
  return state_ ? &state_->group : nullptr;
}

const DataPrints* Ranks::data_prints() const {
  return state_ ? &state_->prints : nullptr;
}

void Ranks::before_forward(bool last, bool all_have_samples) {
  // A rank without samples uses the parameters in another order.
  if (!all_have_samples) gather_parameters();
  if (!state_ || !state_->ddp) return;
  state_->quiet.reset();  // left over from a batch that threw
  if (!last) state_->quiet.reset(new auto(state_->ddp->no_sync()));
  state_->ddp->before_forward();
}

void Ranks::before_backward(const at::Tensor& loss) {
  if (state_ && state_->ddp) state_->ddp->before_backward({loss});
}

void Ranks::after_backward() {
  if (state_) state_->quiet.reset();
}

std::vector<int> Ranks::ranks_with_other_weights() const {
  if (!state_ || shards_parameters()) return {};
  const at::NoGradGuard no_grad;
  const at::Tensor digests = parallel::weight_digests(state_->model.named_parameters(), state_->group);
  std::vector<int> others;
  for (const auto rank : c10::irange(size())) {
    if (!at::equal(digests[rank], digests[0])) others.push_back(rank);
  }
  return others;
}

void Ranks::before_evaluation() {
  if (state_) parallel::broadcast_buffers(state_->model, state_->group);
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
  return !state_ || (!state_->skips_samples && batch_size % size() == 0 && batch.size() * size() == batch_size &&
                     batch.consumed() == (batch.index() + 1) * batch_size);
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
  return samples >= size() && (samples == batch_size || !state_->fills_in_order);
}

std::vector<comm::Shard> Ranks::parts_of(const Model& model) const {
  if (!shards_parameters()) return checkpoint::whole_parts(model.state_dict());
  std::vector<comm::Shard> parts;
  NamedTensors complete;
  for (const auto& item : model.state_dict()) {
    if (!gradient_part(item.second).owner) complete.push_back(item);
  }
  for (const auto& optimizer : state_->sharded_parameters) {
    for (comm::Shard& shard : optimizer->parameter_shards()) parts.push_back(std::move(shard));
  }
  for (comm::Shard& part : checkpoint::whole_parts(complete)) parts.push_back(std::move(part));
  return parts;
}

std::vector<comm::Shard> Ranks::parts_of(const torch::optim::Optimizer& optimizer) {
  if (const auto* sharded = dynamic_cast<const parallel::ShardedOptimizer*>(&optimizer)) return sharded->state_shards();
  return checkpoint::whole_parts(optim::state_dict(optimizer));
}

NamedTensors Ranks::state() const {
  return state_ && state_->ddp ? state_->ddp->state() : NamedTensors();
}

void Ranks::restore(const NamedTensors& state) {
  if (state_ && state_->ddp) state_->ddp->restore(state);
}

std::string Ranks::describe() const {
  if (!state_) return "";
  return state_->strategy + ": " + (state_->ddp ? state_->ddp->describe() : c10::str(size(), " ranks"));
}

}  // namespace bellows::train
