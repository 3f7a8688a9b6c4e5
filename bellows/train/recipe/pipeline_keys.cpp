#include "bellows/train/recipe/pipeline_keys.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

constexpr int64_t micro_batches_per_rank = 4;

/// Returns the setting that does not work with pipeline parallelism, with the reason; empty if there is none.
std::string pipeline_conflict(const Recipe& recipe) {
  if (const std::string shared = shared_samples_conflict(recipe); !shared.empty()) return shared;
  if (recipe.memory_budget != 1)
    return "memory_budget plans complete steps, but the compiled parts are those of stages";
  if (recipe.precision != "fp32" && (recipe.amp_level == "O2" || recipe.amp_level == "O3"))
    return "amp_level = " + recipe.amp_level + " converts the weights of the complete model";
  if (recipe.optimizer_state == "int8" || recipe.optimizer_state == "int4")
    return "optimizer_state = " + recipe.optimizer_state + " is not supported in checkpoints of stages";
  if (recipe.optimizer_in_backward) return "optimizer_in_backward needs the gradients of the whole step in backward";
  if (recipe.gradient_accumulation_dtype != "auto")
    return "gradient_accumulation_dtype = " + recipe.gradient_accumulation_dtype +
           " works only with one process, because several ranks exchange their gradients";
  if (recipe.gradient_compression != "none")
    return "gradient_compression = " + recipe.gradient_compression + " needs the gradient exchange of DDP";
  if (recipe.sequence_parallel) return "sequence_parallel = true runs the blocks of the complete model";
  if (recipe.sync_batch_norm) return "sync_batch_norm needs the batch of all ranks, but stages compute micro-batches";
  if (recipe.quantize != "none") return "quantize = " + recipe.quantize + " observes the complete model";
  if (!recipe.teacher.empty()) return "teacher = " + recipe.teacher + " is not divided, and needs all logits";
  if (recipe.batch_size_start > 0) return "batch_size_start changes the batch, but a schedule has fixed micro-batches";
  if (recipe.fast_random) return "fast_random draws other numbers on each rank";
  return "";
}

/// Returns the setting of activation memory that does not work with pipeline parallelism; empty if there is none.
std::string activation_conflict(const Recipe& recipe) {
  if (recipe.activation_memory_budget > 0 || recipe.activation_memory_budget_mb > 0)
    return "activation_memory_budget plans the blocks of the complete model";
  if (recipe.activation_dtype != "full")
    return "activation_dtype = " + recipe.activation_dtype + " rounds the activations of a complete forward pass";
  if (!recipe.offload_folder.empty()) return "offload_folder stores the activations of a complete forward pass";
  return recipe.sample_stats ? "sample_stats works only with one process" : "";
}

/// Whether the key `pipeline_schedule` is the path of a file.
bool is_schedule_path(const std::string& text) {
  return text.find('/') != std::string::npos || text.find('.') != std::string::npos;
}

/// Returns the number of samples in a batch of one pipeline.
int64_t samples_of_pipeline(const Recipe& recipe) {
  if (recipe.batch_size_per_rank > 0) return recipe.batch_size_per_rank;
  const std::vector<comm::MeshAxis> axes = parse_mesh(recipe.mesh);
  return recipe.batch_size / (axis_size(axes, "data") * axis_size(axes, "shard"));
}

int micro_batches_of(const Recipe& recipe, int ranks) {
  const int64_t samples = samples_of_pipeline(recipe);
  int64_t count = recipe.micro_batches;
  if (count == 0) {
    count = std::min(micro_batches_per_rank * ranks, samples);
    if (recipe.pipeline_schedule == "interleaved") count -= count % ranks;
  }
  check_recipe(count > 0, "train: each pipeline has ", samples, samples == 1 ? " sample" : " samples",
               " per batch, which is too few for pipeline_schedule = ", recipe.pipeline_schedule, " on ", ranks,
               " ranks. Increase batch_size, or use fewer ranks.");
  check_recipe(count <= samples, "train: micro_batches = ", count, " needs as many samples, but each pipeline has ",
               samples, " per batch. Increase batch_size, or set micro_batches to at most ", samples, ".");
  return static_cast<int>(count);
}

parallel::PipelineSchedule schedule_from_file(const Recipe& recipe, int ranks) {
  parallel::PipelineSchedule schedule = parallel::read_schedule(recipe.pipeline_schedule);
  check_recipe(static_cast<int>(schedule.ranks.size()) == ranks,
               "train: pipeline_schedule = ", recipe.pipeline_schedule, " is a schedule for ", schedule.ranks.size(),
               " ranks, but mesh = ", recipe.mesh, " has ", ranks, ". Change one of them.");
  check_recipe(recipe.micro_batches == 0 || recipe.micro_batches == schedule.micro_batches,
               "train: pipeline_schedule = ", recipe.pipeline_schedule, " is a schedule for ", schedule.micro_batches,
               " micro-batches, but micro_batches = ", recipe.micro_batches,
               ". Set micro_batches: 0 to use the number of the file.");
  return schedule;
}

void check_schedule_keys(const Recipe& recipe, const std::string& where) {
  const std::vector<std::string>& names = parallel::schedule_names();
  const std::string& schedule = recipe.pipeline_schedule;
  TORCH_CHECK_VALUE(std::find(names.begin(), names.end(), schedule) != names.end() || is_schedule_path(schedule),
                    "recipe: ", where, ": pipeline_schedule = \"", schedule,
                    "\": expected 1f1b, gpipe, interleaved, zero_bubble or the path of a schedule file, which contains "
                    "a slash or a dot.",
                    did_you_mean(schedule, names));
  TORCH_CHECK_VALUE((recipe.pipeline_stages > 1) == (schedule == "interleaved"), "recipe: ", where,
                    ": pipeline_stages = ", recipe.pipeline_stages, " with pipeline_schedule = ", schedule,
                    ": the schedule interleaved needs at least 2 stages per rank, and the other schedules have 1. "
                    "Change one of the keys.");
  TORCH_CHECK_VALUE(recipe.pipeline_stages == 1 || recipe.micro_batches % pipeline_ranks(recipe) == 0,
                    "recipe: ", where, ": micro_batches = ", recipe.micro_batches, " must be a multiple of the ",
                    pipeline_ranks(recipe), " ranks of the axis pipeline with pipeline_schedule = interleaved.");
}

}  // namespace

int pipeline_ranks(const Recipe& recipe) {
  return axis_size(parse_mesh(recipe.mesh), "pipeline");
}

parallel::PipelineSchedule pipeline_schedule(const Recipe& recipe) {
  const int ranks = pipeline_ranks(recipe);
  if (is_schedule_path(recipe.pipeline_schedule)) return schedule_from_file(recipe, ranks);
  const int count = micro_batches_of(recipe, ranks);
  return parallel::named_schedule(recipe.pipeline_schedule, ranks, count, static_cast<int>(recipe.pipeline_stages));
}

void check_pipeline_keys(const Recipe& recipe, const std::string& where) {
  const bool on = pipeline_ranks(recipe) > 1;
  const std::string key = recipe.pipeline_schedule != "1f1b" ? "pipeline_schedule"
                          : recipe.pipeline_stages != 1      ? "pipeline_stages"
                          : recipe.micro_batches != 0        ? "micro_batches"
                                                             : "";
  TORCH_CHECK_VALUE(on || key.empty(), "recipe: ", where, ": ", key,
                    " works only with an axis pipeline in mesh. Set mesh: {pipeline: 2}, or remove ", key, ".");
  if (!on) return;
  check_schedule_keys(recipe, where);
  std::string conflict = pipeline_conflict(recipe);
  if (conflict.empty()) conflict = activation_conflict(recipe);
  check_axis(recipe, where, "pipeline", conflict);
}

}  // namespace bellows::train
