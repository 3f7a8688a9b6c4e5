#include "bellows/plan/plan.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <map>
#include <utility>

#include "bellows/models/model_skeleton.h"
#include "bellows/plan/depth_extrapolation.h"
#include "bellows/train/recipe/context_keys.h"
#include "bellows/train/recipe/pipeline_keys.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/recipe/recipe_error.h"
#include "bellows/train/recipe/tensor_keys.h"
#include "bellows/train/resolved_job.h"

namespace bellows::train {

namespace {

using inspect::TensorKind;
using inspect::TensorLife;
using models::InputKind;
using models::ModelEntry;
using models::ModelSize;

constexpr int64_t long_from = 64, short_length = 32;
// For images and series, because a single larger sample may exceed the machine's memory.
constexpr int64_t tried_up_to = 1024;

/// Small sizes that distinguish the laws. Images keep their remainder modulo 32, that is, after being halved five
/// times.
std::vector<StepSize> small_sizes(InputKind input, int64_t length) {
  if (length <= long_from) return {{2, length}, {3, length}};
  const int64_t rest = input == InputKind::image ? length % 32 : 0;
  const int64_t first = (input == InputKind::image ? 64 : short_length) + rest;
  return {{2, first}, {3, first}, {2, 2 * first - rest}};
}

bool takes(DryRun& dry_run, int64_t length) {
  try {
    dry_run.try_length(length);
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

/// Uses short lengths instead of long ones if the model accepts them. Models with a linear layer over whole images do
/// not.
std::vector<StepSize> dry_run_sizes(DryRun& dry_run, int64_t length) {
  const ModelEntry& entry = dry_run.entry();
  std::vector<StepSize> sizes = small_sizes(entry.input, length);
  if (length <= long_from || entry.model_size) return sizes;
  if (entry.input == InputKind::tokens || length <= tried_up_to) dry_run.try_length(length);
  if (!takes(dry_run, sizes.front().length)) sizes = {{2, length}, {3, length}};
  return sizes;
}

/// The results of a plan's dry runs.
struct DryRuns {
  std::vector<RecordedStep> steps;  ///< first those of the skeleton's other sizes, then one per size
  std::vector<StepSize> sizes;
  std::vector<double> seconds;  ///< per size
  std::vector<Shape> shapes;    ///< of the parameters
  bool few_scores = false;
};

DryRuns take_dry_runs(const Recipe& recipe, int64_t length, const models::ModelSkeleton* skeleton) {
  DryRuns seen;
  std::vector<NamedShapes> shapes;
  const size_t others = skeleton ? skeleton->others.size() : 0;
  for (const auto i : c10::irange(others)) {
    const ModelSize& model_size = skeleton->others[i].model_size;
    const StepSize size = small_sizes(InputKind::tokens, length).front();
    DryRun dry_run(recipe, model_size);
    seen.steps.push_back({size, model_size, dry_run.record(size)});
    shapes.push_back(dry_run.parameter_shapes());
  }
  DryRun dry_run(recipe, skeleton ? std::optional(skeleton->small) : std::nullopt);
  seen.sizes = dry_run_sizes(dry_run, length);
  for (const StepSize& size : seen.sizes) {
    seen.steps.push_back({size, skeleton ? skeleton->small : ModelSize{}, dry_run.record(size)});
    seen.seconds.push_back(dry_run.seconds());
  }
  seen.few_scores = dry_run.holds_few_scores();
  seen.shapes = full_shapes(skeleton ? *skeleton : models::ModelSkeleton{}, dry_run.parameter_shapes(), shapes);
  return seen;
}

void count_parameters(MemoryPlan& plan, const std::vector<Shape>& shapes) {
  for (const Shape& shape : shapes) {
    const int64_t count = shape.elements();
    plan.parameters += shape.count * count;
    const size_t dims = shape.sizes.size();
    const int64_t factored = dims < 2 ? count : count / shape.sizes[dims - 1] + count / shape.sizes[dims - 2];
    plan.factored += shape.count * factored;
  }
}

/// The relative work of a step per token for a model size: its matrix multiplications.
double products(const ModelSize& model_size, bool scores_words) {
  const ModelSize own{.layers = model_size.layers,
                      .heads = model_size.heads,
                      .head_width = model_size.head_width,
                      .inner = model_size.inner};
  return own.parameters() + (scores_words ? static_cast<double>(model_size.words * model_size.width()) : 0);
}

/// Extrapolates the time of the step: a constant plus a part proportional to the work.
double extrapolated_seconds(InputKind input, const std::vector<StepSize>& sizes, const std::vector<double>& seconds,
                            const StepSize& wanted) {
  const auto work = [&](const StepSize& size) {
    const auto length = static_cast<double>(size.length);
    return static_cast<double>(size.batch) * (input == InputKind::image ? length * length : length);
  };
  const auto by_work = [&](size_t a, size_t b) { return work(sizes[a]) < work(sizes[b]); };
  std::vector<size_t> order(sizes.size());
  for (const auto i : c10::irange(order.size())) order[i] = i;
  const auto [low, high] = std::minmax_element(order.begin(), order.end(), by_work);
  const double slope = (seconds[*high] - seconds[*low]) / (work(sizes[*high]) - work(sizes[*low]));
  const double most = seconds[*high] / work(sizes[*high]);  // without a constant
  const double used = std::clamp(slope, 0.25 * most, most);
  return seconds[*high] + used * (work(wanted) - work(sizes[*high]));
}

void list_activations(MemoryPlan& plan) {
  std::map<std::string, size_t> index;
  for (const TensorLife& tensor : plan.step.tensors) {
    if (tensor.kind != TensorKind::activation) continue;
    const auto [place, is_new] = index.try_emplace(tensor.module, plan.activations.size());
    if (is_new) plan.activations.push_back({tensor.module, 0});
    plan.activations[place->second].bytes += tensor.bytes;
  }
}

void list_unfitted(MemoryPlan& plan) {
  for (const auto i : c10::irange(plan.step.tensors.size())) {
    const TensorLife& tensor = plan.step.tensors[i];
    if (plan.model.laws()[i].fits || tensor.bytes < plan.peak.bytes / 1000) continue;
    plan.unfitted.push_back({tensor.op, tensor.module, tensor.bytes});
  }
}

/// Number of ranks among which a replica of the model is sharded.
/// Throws: c10::ValueError if the mesh is for another number of ranks
int64_t ranks_of_shard(const MemoryPlan& plan) {
  const std::vector<comm::MeshAxis> mesh = parse_mesh(plan.recipe.mesh);
  if (mesh.empty()) return plan.ranks;
  TORCH_CHECK_VALUE(int64_t{mesh[0].size} * mesh[1].size == plan.ranks, "plan_memory: mesh = ", plan.recipe.mesh,
                    " is for ", int64_t{mesh[0].size} * mesh[1].size, " ranks, got ", plan.ranks, ".");
  return mesh[1].size;
}

/// Whether a place of recipe key offload_parameters or offload_state is outside of the device's memory.
bool leaves_memory(const std::string& place, bool on_cpu) {
  return place == "file" || (place == "host" && !on_cpu);
}

/// Takes offloaded shards out of the peak, and adds the windows of their files.
/// Params: shard, state, gradients – bytes per rank of the parameters, of the optimizer state, and of the gradients
void offload_shards(MemoryPlan& plan, int64_t shard, int64_t state, int64_t gradients) {
  const bool on_cpu = plan.recipe.device.starts_with("cpu");
  const bool parameters = leaves_memory(plan.recipe.offload_parameters, on_cpu);
  const bool rest = leaves_memory(plan.recipe.offload_state, on_cpu) || (parameters && !on_cpu);
  if (parameters) plan.saved_by_sharding += shard;
  if (parameters && on_cpu) plan.communication += std::min(offload_window, shard);
  if (rest) plan.saved_by_sharding += state + gradients;
  if (rest && on_cpu) plan.communication += std::min(2 * offload_window, state) + std::min(offload_window, gradients);
}

/// Applies the formulas of docs/strategies.md for n ranks to the peak.
void share_between_ranks(MemoryPlan& plan) {
  if (plan.ranks == 1 || !plan.recipe.data_parallel.starts_with("zero")) return;
  const int64_t ranks = ranks_of_shard(plan), state_ranks = plan.recipe.shard_state_over_all ? plan.ranks : ranks;
  const auto others = [&](int64_t bytes) { return bytes - bytes / ranks; };
  const int64_t state = plan.peak.of(TensorKind::optimizer) + plan.peak.of(TensorKind::master);
  plan.saved_by_sharding = state - state / state_ranks;
  if (plan.recipe.data_parallel == "zero1") return offload_shards(plan, 0, state / state_ranks, 0);
  const int64_t bucket = plan.recipe.bucket_mb << 20;
  plan.saved_by_sharding += others(plan.peak.of(TensorKind::gradient));
  plan.communication = std::min(4 * bucket, plan.peak.of(TensorKind::gradient));
  const int64_t gradients = plan.peak.of(TensorKind::gradient) / ranks;
  if (plan.recipe.data_parallel == "zero2") return offload_shards(plan, 0, state / state_ranks, gradients);
  plan.saved_by_sharding += others(plan.peak.of(TensorKind::weight));
  plan.communication += std::min(2 * bucket, plan.peak.of(TensorKind::weight));
  offload_shards(plan, plan.peak.of(TensorKind::weight) / ranks, state / state_ranks, gradients);
}

/// Checks the length as the full model would. Params: skeleton – its model has fewer positions
void check_length(const ModelEntry& entry, const std::optional<models::ModelSkeleton>& skeleton, int64_t length) {
  check_recipe(!skeleton || length <= skeleton->full.positions, "plan_memory: ", entry.name, " has positions for 1 to ",
               skeleton ? skeleton->full.positions : 0, " tokens per sample, got ", length, " tokens.");
}

/// Rejects sizes whose sum would overflow.
void check_total(const inspect::TensorTimeline& step, const StepSize& size) {
  double sum = 0;
  for (const TensorLife& tensor : step.tensors) sum += static_cast<double>(tensor.bytes);
  TORCH_CHECK_VALUE(sum < 1e18, "plan_memory: the tensors of a step must have less than 10^18 bytes in total, got ",
                    sum, " for a batch of ", size.batch, " samples of length ", size.length, ".");
}

}  // namespace

MemoryPlan plan_memory(const Recipe& asked, const StepSize& size, int64_t ranks) {
  const Recipe recipe = with_model_defaults(asked);
  TORCH_CHECK_VALUE(size.batch >= 1 && ranks >= 1 && size.batch % ranks == 0,
                    "plan_memory: the batch size must be a positive multiple of the number of ranks, got a batch of ",
                    size.batch, " and ", ranks, ranks == 1 ? " rank." : " ranks.");
  TORCH_CHECK_VALUE(size.length >= 0, "plan_memory: the length must be at least 0, got ", size.length, ".");
  check_recipe(
      tensor_ranks(recipe) == 1 && pipeline_ranks(recipe) == 1, "plan_memory: mesh = ", recipe.mesh,
      " divides the model, but the memory of divided models is not predicted. Remove the axes tensor and pipeline. The "
      "strategies of `bellows plan --ranks N` contain estimates of tensor and pipeline parallelism.");
  check_recipe(context_ranks(recipe) == 1, "plan_memory: mesh = ", recipe.mesh,
               " divides sequences, whose memory is not predicted. Remove the axis context. The strategies of `bellows "
               "plan --ranks N` contain an estimate of context parallelism.");
  const ModelEntry entry = dry_run_entry(recipe);
  const std::optional<models::ModelSkeleton> skeleton = models::model_skeleton(entry);
  const StepSize wanted{size.batch / ranks, dry_run_length(recipe, entry, size)};
  check_length(entry, skeleton, wanted.length);
  DryRuns seen = take_dry_runs(recipe, wanted.length, skeleton ? &*skeleton : nullptr);
  StepModel model(std::move(seen.steps), skeleton ? skeleton->full : ModelSize{}, seen.few_scores);
  inspect::TensorTimeline step = model.at(wanted);
  check_total(step, wanted);
  const auto peak = step.peak();
  MemoryPlan plan{.recipe = recipe,
                  .size = wanted,
                  .ranks = ranks,
                  .model = std::move(model),
                  .step = std::move(step),
                  .peak = peak,
                  .step_seconds = extrapolated_seconds(entry.input, seen.sizes, seen.seconds, wanted),
                  .rehearsed = seen.sizes};
  if (skeleton) {
    const bool scores_words = entry.output == models::OutputKind::token;
    plan.model_size = skeleton->full;
    plan.small_model_size = skeleton->small;
    plan.step_seconds *= products(skeleton->full, scores_words) / products(skeleton->small, scores_words);
  }
  count_parameters(plan, seen.shapes);
  list_activations(plan);
  list_unfitted(plan);
  share_between_ranks(plan);
  for (const TensorLife& tensor : plan.step.tensors) {
    if (tensor.kind == TensorKind::input && tensor.born >= 0) plan.waiting += recipe.prefetch * tensor.bytes;
  }
  return plan;
}

void rehearse_bf16(MemoryPlan& plan) {
  if (plan.recipe.precision != "fp32" || plan.in_bf16) return;
  Recipe recipe = plan.recipe;
  recipe.precision = "bf16";
  recipe.amp_level = "O1";
  plan.in_bf16 = std::make_shared<const MemoryPlan>(
      plan_memory(recipe, {plan.size.batch * plan.ranks, plan.size.length}, plan.ranks));
}

}  // namespace bellows::train
