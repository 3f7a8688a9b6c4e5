#include "bellows/train/recipe/rank_keys.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>

#include "bellows/core/error.h"
#include "bellows/train/recipe/context_keys.h"
#include "bellows/train/recipe/pipeline_keys.h"
#include "bellows/train/recipe/tensor_keys.h"
#include "bellows/train/task.h"

namespace bellows::train {

namespace {

/// The setting whose results would depend on the number of ranks even with `reproducible_ranks`; empty if there is none.
std::string depends_on_ranks(const Recipe& recipe) {
  if (recipe.batch_size % recipe.reproducible_ranks != 0)
    return c10::str("batch_size = ", recipe.batch_size, " is not a multiple of it");
  if (recipe.sync_batch_norm) return "sync_batch_norm computes statistics over all ranks";
  if (recipe.compile != "none")
    return "compile = " + recipe.compile + " compiles other programs for other numbers of ranks";
  if (recipe.batch_size_start > 0) return "batch_size_start changes the batch size";
  if (recipe.bad_samples == "skip") return "bad_samples = skip leaves out samples of some ranks";
  if (recipe.activation_dtype == "int8" || recipe.activation_dtype == "int4")
    return "activation_dtype = " + recipe.activation_dtype + " rounds at random on each rank";
  if (recipe.lr_schedule == "plateau" || recipe.early_stopping_patience > 0 || recipe.target_accuracy > 0)
    return "lr_schedule = plateau, early_stopping_patience and target_accuracy follow evaluations, whose sums "
           "depend on the ranks";
  if (recipe.precision == "fp16") return "precision = fp16 changes the scale of the loss during training";
  if (recipe.gradient_compression != "none") return "gradient_compression rounds the gradients of each rank";
  if (recipe.quantize != "none") return "quantize observes ranges on each rank";
  if (recipe.optimizer_in_backward) return "optimizer_in_backward needs the complete gradient in backward";
  if (recipe.gradient_accumulation_dtype != "auto")
    return "gradient_accumulation_dtype adds gradients in another order";
  if (recipe.batch_size_per_rank > 0) return "batch_size_per_rank changes the batch size";
  const std::vector<comm::MeshAxis> axes = parse_mesh(recipe.mesh);
  const bool adds_in_pairs = recipe.data_parallel == "zero1" || recipe.shard_state_over_all;
  if (!axes.empty() && axes.front().size > 2 && !adds_in_pairs)
    return c10::str("mesh = ", recipe.mesh, " averages over ", axes.front().size,
                    " copies of the model in another order");
  const bool shards = recipe.data_parallel == "zero2" || recipe.data_parallel == "zero3";
  if (shards && recipe.batch_norm_freeze_step > 0)
    return "batch_norm_freeze_step uses the running statistics of each rank with " + recipe.data_parallel;
  if (shards && recipe.max_grad_norm > 0) return "max_grad_norm adds norms of each rank with " + recipe.data_parallel;
  return "";
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

/// Leaves out axes of size 1 that the mesh does not need, so that names of meshes are short.
std::vector<comm::MeshAxis> needed_axes(std::vector<comm::MeshAxis> axes) {
  for (comm::MeshAxis& axis : axes) axis.size = std::max(axis.size, 1);
  const bool divides = ranks_per_sample(axes) > 1;
  std::erase_if(axes, [&](const comm::MeshAxis& axis) {
    return axis.size == 1 && axis.name != "data" && (axis.name != "shard" || divides);
  });
  return axes;
}

void check_mesh_keys(const Recipe& recipe, const std::string& where) {
  const std::vector<comm::MeshAxis> axes = parse_mesh(recipe.mesh);
  const bool zero = recipe.data_parallel.starts_with("zero");
  TORCH_CHECK_VALUE(
      axes.empty() || zero || ranks_per_sample(axes) > 1, "recipe: ", where, ": mesh = ", recipe.mesh,
      " works only with data_parallel zero1, zero2 and zero3, or with an axis pipeline, context or tensor "
      "of at least 2, got ",
      recipe.data_parallel, ". Use one of them, or remove mesh.");
  TORCH_CHECK_VALUE(!recipe.shard_state_over_all || (!axes.empty() && zero && recipe.data_parallel != "zero1"),
                    "recipe: ", where,
                    ": shard_state_over_all works only with a mesh and data_parallel zero2 or zero3. Set both, or ",
                    "set shard_state_over_all: false.");
  TORCH_CHECK_VALUE(!recipe.shard_frozen || recipe.data_parallel == "zero3", "recipe: ", where,
                    ": shard_frozen works only with data_parallel zero3, got ", recipe.data_parallel,
                    ". Use zero3, or set shard_frozen: false.");
  const std::string limit = c10::str("recipe: ", where, ": gathered_frozen_mb = ", recipe.gathered_frozen_mb);
  TORCH_CHECK_VALUE(recipe.gathered_frozen_mb == -1 || recipe.shard_frozen, limit,
                    " works only with shard_frozen = true. Set shard_frozen: true, or gathered_frozen_mb: -1.");
  TORCH_CHECK_VALUE(recipe.gathered_frozen_mb == -1 || recipe.reshard_after_forward, limit,
                    " needs reshard_after_forward = true, because otherwise all gathered parameters stay in memory. "
                    "Set reshard_after_forward: true, or gathered_frozen_mb: -1.");
}

void check_offload_keys(const Recipe& recipe, const std::string& where) {
  const std::string &parameters = recipe.offload_parameters, &state = recipe.offload_state;
  TORCH_CHECK_VALUE(parameters == "none" || recipe.data_parallel == "zero3", "recipe: ", where,
                    ": offload_parameters = ", parameters, " works only with data_parallel zero3, got ",
                    recipe.data_parallel,
                    ", which keeps complete parameters on each rank. Use zero3, or set "
                    "offload_parameters: none.");
  TORCH_CHECK_VALUE(state == "none" || recipe.data_parallel.starts_with("zero"), "recipe: ", where,
                    ": offload_state = ", state, " works only with data_parallel zero1, zero2 and zero3, got ",
                    recipe.data_parallel, ". Use one of them, or set offload_state: none.");
  const bool file = parameters == "file" || state == "file";
  TORCH_CHECK_VALUE(!file || !recipe.offload_shard_folder.empty(), "recipe: ", where,
                    ": offload_parameters or offload_state = file needs offload_shard_folder. Set it to a folder on a "
                    "fast disk.");
  TORCH_CHECK_VALUE(file || recipe.offload_shard_folder.empty(), "recipe: ", where,
                    ": offload_shard_folder = ", recipe.offload_shard_folder,
                    " is used only by offload_parameters and offload_state = file. Set one of them to file, or remove "
                    "offload_shard_folder.");
  TORCH_CHECK_VALUE(!file || !recipe.allocator_reuse, "recipe: ", where,
                    ": allocator_reuse = true keeps the memory that offloading to a file frees. Set allocator_reuse: "
                    "false.");
  TORCH_CHECK_VALUE(state == "none" || parameters != "none" || recipe.device.starts_with("cpu"), "recipe: ", where,
                    ": offload_state = ", state, " with device = ", recipe.device,
                    " needs offload_parameters = host or file, because the host updates only shards that it holds. Set "
                    "offload_parameters: host.");
}

/// Returns why ZeRO and the mesh do not fit together if ranks read the same samples; empty if they do.
std::string state_conflict(const Recipe& recipe) {
  const std::vector<comm::MeshAxis> axes = parse_mesh(recipe.mesh);
  if (!recipe.data_parallel.starts_with("zero"))
    return axis_size(axes, "shard") == 1
               ? ""
               : "the axis shard belongs to ZeRO, and data_parallel = " + recipe.data_parallel +
                     " keeps complete optimizer state";
  if (axis_size(axes, "data") * axis_size(axes, "shard") * axis_size(axes, "context") > 1) return "";
  return "data_parallel = " + recipe.data_parallel +
         " divides the state among ranks with the same part of the model, and the mesh has no axis data or shard of at "
         "least 2";
}

}  // namespace

Recipe with_total_batch(Recipe recipe, int64_t ranks) {
  if (recipe.batch_size_per_rank > 0) recipe.batch_size = recipe.batch_size_per_rank * data_ranks(recipe, ranks);
  recipe.batch_size_per_rank = 0;
  return recipe;
}

std::vector<comm::MeshAxis> parse_mesh(const std::string& text, const std::string& where) {
  if (text.empty()) return {};
  const std::vector<std::string> names = {"data", "shard", "pipeline", "context", "tensor"};
  std::vector<comm::MeshAxis> axes;
  axes.reserve(names.size());
  for (const std::string& name : names) axes.push_back({name, 0});
  double ranks = 1;  // cannot overflow
  for (const std::string& item : split_list(without_spaces(without_braces(text)))) {
    const size_t colon = item.find_first_of(":=");
    const std::string name = item.substr(0, colon);
    int size = 0;
    const char* end = item.data() + item.size();
    const char* begin = colon == std::string::npos ? end : item.data() + colon + 1;
    const auto [rest, error] = std::from_chars(begin, end, size);
    TORCH_CHECK_VALUE(error == std::errc() && rest == end && size > 0, where,
                      ": expected axes with sizes above 0, such as {data: 2, shard: 4}, got \"", text, "\".");
    const auto axis = std::find_if(axes.begin(), axes.end(), [&](const auto& a) { return a.name == name; });
    TORCH_CHECK_VALUE(axis != axes.end(), where, ": no axis is called \"", name,
                      "\". The axes are data, shard, pipeline, context and tensor.", did_you_mean(name, names));
    TORCH_CHECK_VALUE(axis->size == 0, where, ": the axis ", name, " occurs twice in \"", text, "\".");
    axis->size = size;
    ranks *= size;
  }
  TORCH_CHECK_VALUE(ranks <= 1 << 24, where, ": expected at most 16777216 ranks, got more in \"", text, "\".");
  return needed_axes(std::move(axes));
}

int axis_size(const std::vector<comm::MeshAxis>& axes, const std::string& name) {
  const auto axis = std::find_if(axes.begin(), axes.end(), [&](const auto& a) { return a.name == name; });
  return axis == axes.end() ? 1 : axis->size;
}

int ranks_per_sample(const std::vector<comm::MeshAxis>& axes) {
  return axis_size(axes, "pipeline") * axis_size(axes, "context") * axis_size(axes, "tensor");
}

int ranks_per_sample(const Recipe& recipe) {
  return ranks_per_sample(parse_mesh(recipe.mesh));
}

int64_t data_ranks(const Recipe& recipe, int64_t ranks) {
  return ranks == 1 ? 1 : std::max<int64_t>(ranks / ranks_per_sample(recipe), 1);
}

std::string shared_samples_conflict(const Recipe& recipe) {
  if (recipe.data_parallel == "dp") return "data_parallel = dp trains in one process";
  if (recipe.reproducible_ranks > 0)
    return c10::str("reproducible_ranks = ", recipe.reproducible_ranks, " divides the batch among all ranks");
  return state_conflict(recipe);
}

std::string shared_operators_conflict(const Recipe& recipe) {
  if (recipe.activation_dtype == "int8" || recipe.activation_dtype == "int4")
    return "activation_dtype = " + recipe.activation_dtype + " rounds at random on each rank";
  if (recipe.activation_memory_budget > 0 || recipe.activation_memory_budget_mb > 0)
    return "activation_memory_budget selects by measured times, so the ranks would repeat different exchanges";
  return shared_samples_conflict(recipe);
}

void check_axis(const Recipe& recipe, const std::string& where, const std::string& axis, const std::string& conflict) {
  TORCH_CHECK_VALUE(conflict.empty(), "recipe: ", where, ": mesh = ", recipe.mesh, " uses ", axis, " parallelism, but ",
                    conflict, ". Remove the axis ", axis, ", or change the other setting.");
}

std::string without_braces(std::string text) {
  std::erase_if(text, [](char c) { return c == '{' || c == '}' || c == '"' || c == '\''; });
  return text;
}

std::string mesh_text(const std::vector<comm::MeshAxis>& axes) {
  std::string text;
  for (const comm::MeshAxis& axis : axes) text += c10::str(text.empty() ? "" : ", ", axis.name, ": ", axis.size);
  return text;
}

std::string whole_parameters_conflict(const Recipe& recipe) {
  const std::string& name = recipe.optimizer;
  if (name == "adafactor") return "optimizer = adafactor uses rows and columns of complete parameters";
  if (name == "muon") return "optimizer = muon uses complete matrices";
  if (name == "lamb" || name == "novograd" || name == "larc")
    return "optimizer = " + name + " uses norms of complete parameters";
  return "";
}

std::string backward_steps_conflict(const Recipe& recipe) {
  if (recipe.gradient_compression != "none")
    return "gradient_compression = " + recipe.gradient_compression + " compresses the buckets of another exchange";
  if (recipe.compile == "step") return "compile = step exchanges gradients at the end of a step";
  if (const std::string whole = whole_parameters_conflict(recipe); !whole.empty())
    return whole + ", and buckets are updated as flat arrays";
  if (recipe.data_parallel == "ddp" && recipe.batch_norm_freeze_step > 0)
    return c10::str("batch_norm_freeze_step = ", recipe.batch_norm_freeze_step,
                    " needs equal running statistics, which only the gradient exchange of DDP copies to all ranks");
  if (ranks_per_sample(recipe) > 1)
    return "mesh = " + recipe.mesh + " has an axis pipeline, context or tensor, whose gradients are completed later";
  return "";
}

void check_rank_keys(const Recipe& recipe, const std::string& where) {
  TORCH_CHECK_VALUE(
      recipe.data_parallel == "ddp" || recipe.data_parallel == "zero1" || recipe.gradient_compression == "none",
      "recipe: ", where, ": gradient_compression = ", recipe.gradient_compression,
      " works only with data_parallel ddp and zero1. Use one of them, or set gradient_compression: none.");
  const bool shards_gradients = recipe.data_parallel == "zero2" || recipe.data_parallel == "zero3";
  TORCH_CHECK_VALUE(recipe.shard_units.empty() || shards_gradients, "recipe: ", where,
                    ": shard_units = ", recipe.shard_units, " works only with data_parallel zero2 and zero3, got ",
                    recipe.data_parallel, ". Use one of them, or remove shard_units.");
  TORCH_CHECK_VALUE(recipe.reshard_after_forward || recipe.data_parallel == "zero3", "recipe: ", where,
                    ": reshard_after_forward = false works only with data_parallel zero3, got ", recipe.data_parallel,
                    ". Use zero3, or set reshard_after_forward: true.");
  TORCH_CHECK_VALUE(recipe.sync_each_batch || shards_gradients, "recipe: ", where,
                    ": sync_each_batch = false works only with data_parallel zero2 and zero3, got ",
                    recipe.data_parallel, ", which exchanges gradients once per step. Set sync_each_batch: true.");
  check_mesh_keys(recipe, where);
  check_context_keys(recipe, where);
  check_tensor_keys(recipe, where);
  check_pipeline_keys(recipe, where);
  check_offload_keys(recipe, where);
  const std::string varies = recipe.reproducible_ranks > 0 ? depends_on_ranks(recipe) : "";
  TORCH_CHECK_VALUE(varies.empty(), "recipe: ", where, ": reproducible_ranks = ", recipe.reproducible_ranks, ", but ",
                    varies, ". Set reproducible_ranks: 0, or change the other setting.");
}

}  // namespace bellows::train
