#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "bellows/checkpoint/rng.h"
#include "bellows/core/error.h"
#include "bellows/models/blocks.h"
#include "bellows/models/model_skeleton.h"
#include "bellows/parallel/context/sequence_layout.h"
#include "bellows/parallel/tensor/tensor_plan.h"
#include "bellows/techniques/parallel_technique.h"
#include "bellows/techniques/technique_rows.h"
#include "bellows/train/recipe/pipeline_keys.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/resolved_job.h"
#include "bellows/train/step/context_ranks.h"

namespace bellows::train {

namespace {

const char* const sum_of_ranks = "the gradients of the ranks are added in another order";
const char* const zero_paper = "arXiv:1910.02054 (ZeRO)";

/// Sets the strategy, and removes the settings of other strategies.
void set_strategy(Recipe& recipe, const char* strategy) {
  recipe.data_parallel = strategy;
  recipe.replicas = 0;
  recipe.gradient_compression = "none";
  recipe.reproducible_ranks = 0;
  if (ranks_per_sample(recipe) > 1) recipe.mesh.clear();
  recipe.tensor_plan = "auto";
  recipe.sequence_parallel = false;
  recipe.context_method = "ring";
  recipe.pipeline_schedule = "1f1b";
  recipe.micro_batches = 0;
  recipe.pipeline_stages = 1;
}

/// Returns the recipe with a mesh of one axis, and with the default values of all keys that belong to an axis.
Recipe with_axis(Recipe recipe, const char* axis, int ranks) {
  set_strategy(recipe, "ddp");
  recipe.mesh = c10::str(axis, ": ", ranks);
  return recipe;
}

/// The message with which the recipe refuses the settings; empty if it accepts them.
std::string conflict_of(const Recipe& recipe, const std::function<void(Recipe&)>& apply) {
  Recipe changed = recipe;
  apply(changed);
  try {
    changed.validate();
    return "";
  } catch (const c10::Error& error) {
    return user_message(error);
  }
}

ParallelTechnique ddp_row() {
  return {
      .name = "ddp",
      .title = "DDP",
      .changes =
          "Each rank has a copy of the model and a part of each batch. Backward averages the gradients over "
          "the ranks. Recipe: `data_parallel: ddp`, the default.",
      .apply = [](Recipe& recipe, int) { set_strategy(recipe, "ddp"); },
      .expected = {.time_factor = 1.05,
                   .memory_factor = 1,
                   .words = "The exchange of gradients overlaps with backward. On one machine, one process that uses "
                            "all cores needs no exchange, so ranks only help if the operators of one process scale "
                            "badly."},
      .tolerance = sum_of_ranks,
      .source = "arXiv:2006.15704 (PyTorch DistributedDataParallel)"};
}

ParallelTechnique bf16_gradients_row() {
  return {.name = "bf16_gradients",
          .title = "DDP, bf16 gradients",
          .changes = "DDP that sends gradients in bf16. Recipe: `gradient_compression: bf16`.",
          .apply =
              [](Recipe& recipe, int) {
                set_strategy(recipe, "ddp");
                recipe.gradient_compression = "bf16";
              },
          .expected = {.time_factor = 1.05,
                       .memory_factor = 1,
                       .words = "Half of the bytes, but one more pass over the gradients. Within one machine, the pass "
                                "usually takes longer than the exchange that it saves."},
          .exactness = Exactness::lossy,
          .tolerance = "gradients are rounded to 8 significant bits",
          .source = "PyTorch bf16_compress_hook"};
}

ParallelTechnique zero_row(int stage, const char* title, const char* divides, const Expectation& expected) {
  const std::string name = "zero" + std::to_string(stage);
  return {.name = name,
          .title = title,
          .changes = std::string("Divides ") + divides + " among the ranks. Recipe: `data_parallel: " + name + "`.",
          .apply = [name](Recipe& recipe, int) { set_strategy(recipe, name.c_str()); },
          .expected = expected,
          .tolerance = sum_of_ranks,
          .source = zero_paper};
}

/// The reason why no automatic plan divides the model of the recipe among so many ranks; empty if one does.
std::string tensor_obstacle(const Recipe& recipe, int ranks) {
  if (recipe.tensor_plan != "auto") return "";
  const checkpoint::RngGuard restores_generators;
  try {
    const models::ModelEntry entry = resolve_model(recipe).model;
    const models::ModelSize size = entry.model_size ? entry.model_size(entry.input_shape[0]) : models::ModelSize{};
    if (entry.model_size && (size.heads % ranks != 0 || size.inner % ranks != 0))
      return c10::str(ranks, " ranks do not divide both the ", size.heads, " attention heads and the inner width ",
                      size.inner, " of ", recipe.model);
    if (!entry.model_size) {
      const Model model = entry.make(10, std::max<int64_t>(entry.input_shape[0], 1));
      parallel::find_cuts(model, parallel::tensor_plan(model), ranks);
    }
  } catch (const c10::Error&) {
    return c10::str("no automatic plan divides the layers of ", recipe.model, " among ", ranks, " ranks");
  }
  return "";
}

ParallelTechnique tensor_row() {
  return {
      .name = "tensor",
      .title = "tensor parallelism",
      .changes =
          "Divides each layer among the ranks, which all read the complete batch. Recipe: `mesh: {tensor: N}`, "
          "`tensor_plan`.",
      .apply =
          [](Recipe& recipe, int ranks) {
            Recipe changed = with_axis(recipe, "tensor", ranks);
            changed.tensor_plan = recipe.tensor_plan;
            changed.sequence_parallel = recipe.sequence_parallel;
            recipe = std::move(changed);
          },
      .obstacle = tensor_obstacle,
      .expected = {.time_factor = 1.5,
                   .memory_factor = 0.6,
                   .words = "The ranks exchange activations in each layer. Each layer waits for this exchange. Tensor "
                            "parallelism reduces the memory of weights, optimizer state and activations, and does "
                            "not need a large batch."},
      .tolerance = "the outputs of layers are sums over the ranks, which are added in another order",
      .source = "arXiv:1909.08053 (Megatron-LM)"};
}

/// The reason why the ranks cannot divide the sequences of the recipe's model; empty if they can.
std::string context_obstacle(const Recipe& recipe, int ranks) {
  const checkpoint::RngGuard restores_generators;
  const std::string refusal = "the model " + recipe.model + " cannot divide its sequences";
  try {
    const ResolvedJob job = resolve_model(recipe);
    if (sequence_blocks(models::make_small_model(job.model)) == 0) return refusal;
    const int64_t length = job.row_length();
    const int64_t chunks = parallel::SequenceLayout{.ranks = ranks}.chunks();
    if (length % chunks != 0)
      return c10::str(job.max_length() > 0 ? "max_length = " : "the default max_length of ", length,
                      " is not a multiple of ", chunks, ", twice the number of ranks");
  } catch (const c10::Error&) {
    return refusal;
  }
  return "";
}

ParallelTechnique context_row() {
  return {.name = "context",
          .title = "context parallelism",
          .changes =
              "Divides each sequence among the ranks, which all read the complete batch. Recipe: `mesh: {context: N}`, "
              "`context_method`.",
          .apply =
              [](Recipe& recipe, int ranks) {
                Recipe changed = with_axis(recipe, "context", ranks);
                changed.context_method = recipe.context_method;
                recipe = std::move(changed);
              },
          .obstacle = context_obstacle,
          .expected = {.time_factor = 1.3,
                       .memory_factor = 0.8,
                       .words = "The ranks exchange keys and values in each attention, and gradients once per step. "
                                "Context parallelism reduces the memory of activations only. It pays off for long "
                                "sequences, whose attention takes longer than the exchange."},
          .tolerance = "sums over the tokens are added in another order",
          .source = "arXiv:2310.01889 (ring attention)"};
}

/// Returns the recipe with one stage per rank. It keeps the keys of a recipe whose ranks already form a pipeline.
Recipe with_pipeline(const Recipe& recipe, int ranks) {
  Recipe changed = with_axis(recipe, "pipeline", ranks);
  if (pipeline_ranks(recipe) != ranks) return changed;
  changed.pipeline_schedule = recipe.pipeline_schedule;
  changed.micro_batches = recipe.micro_batches;
  changed.pipeline_stages = recipe.pipeline_stages;
  return changed;
}

/// The reason why the ranks cannot divide the recipe's model into stages; empty if they can.
std::string pipeline_obstacle(const Recipe& recipe, int ranks) {
  const checkpoint::RngGuard restores_generators;
  try {
    const models::ModelEntry entry = resolve_model(recipe).model;
    const size_t small = models::model_parts(models::make_small_model(entry)).parts.size();
    const int64_t layers = entry.model_size ? entry.model_size(entry.input_shape[0]).layers : 0;
    const int64_t parts = layers > 0 ? layers + 2 : static_cast<int64_t>(small);  // with embeddings and head
    if (parts < ranks) return c10::str(recipe.model, " has ", parts, " parts, which are fewer than ", ranks, " ranks");
  } catch (const c10::Error&) {
    return "the model " + recipe.model + " cannot be divided into stages";
  }
  try {
    pipeline_schedule(with_pipeline(recipe, ranks));
  } catch (const c10::Error& error) {
    return user_message(error);
  }
  return "";
}

ParallelTechnique pipeline_row() {
  return {
      .name = "pipeline",
      .title = "pipeline parallelism",
      .changes =
          "Divides the layers into stages. Each rank computes one stage, through which the micro-batches of a batch "
          "pass. Recipe: `mesh: {pipeline: N}`, `pipeline_schedule`, `micro_batches`.",
      .apply = [](Recipe& recipe, int ranks) { recipe = with_pipeline(recipe, ranks); },
      .obstacle = pipeline_obstacle,
      .expected = {.time_factor = 1.3,
                   .memory_factor = 0.6,
                   .words = "Only the activations at the ends of stages are sent, so slow connections suffice. Ranks "
                            "wait at the start and at the end of a step (the bubble). Weights, gradients and "
                            "optimizer state are divided."},
      .tolerance = "the gradients of the micro-batches are added in another order",
      .source = "arXiv:1811.06965 (GPipe), arXiv:2104.04473 (1F1B)"};
}

ParallelTechnique replicas_row() {
  return {.name = "replicas",
          .title = "replicas",
          .changes =
              "One process trains a replica per rank on threads. The replicas share the weights, and their "
              "gradients are added in memory. Recipe: `data_parallel: dp`, `replicas`.",
          .apply =
              [](Recipe& recipe, int ranks) {
                set_strategy(recipe, "dp");
                recipe.replicas = ranks;
              },
          .in_one_process = true,
          .expected = {.time_factor = 1.02,
                       .memory_factor = 1.2,
                       .words = "No process and no connection is needed, but each replica has its own gradients."},
          .tolerance = sum_of_ranks,
          .source = "torch.nn.DataParallel"};
}

ParallelTechnique reproducible_row() {
  return {.name = "reproducible_ranks",
          .title = "reproducible ranks",
          .changes =
              "DDP whose weights are bit-identical on 1, 2, 4, … ranks, up to the number of ranks of this ladder. "
              "Recipe: `reproducible_ranks`.",
          .apply =
              [](Recipe& recipe, int ranks) {
                set_strategy(recipe, "ddp");
                recipe.reproducible_ranks = ranks;
              },
          .obstacle = [](const Recipe&, int ranks) -> std::string {
            if (std::has_single_bit(static_cast<unsigned>(ranks))) return "";
            return c10::str("the number of ranks must be a power of two, got ", ranks);
          },
          .expected = {.time_factor = 1.1,
                       .memory_factor = 1.1,
                       .words = "It makes training slower than DDP: gradients are added in a fixed tree, and each rank "
                                "uses one thread. Use it for its results, and not for its speed."},
          .tolerance = sum_of_ranks,
          .source = "docs/distributed.md"};
}

/// Adds the conflicts that the recipe itself reports to the technique's obstacles.
ParallelTechnique with_conflicts(ParallelTechnique row) {
  row.obstacle = [own = row.obstacle, apply = row.apply](const Recipe& recipe, int ranks) -> std::string {
    std::string words = own ? own(recipe, ranks) : "";
    return words.empty() ? conflict_of(recipe, [&](Recipe& changed) { apply(changed, ranks); }) : words;
  };
  return row;
}

}  // namespace

void register_parallel_techniques(Registry<ParallelTechnique>& registry) {
  const std::vector<ParallelTechnique> rows = {
      ddp_row(),
      bf16_gradients_row(),
      zero_row(1, "ZeRO-1", "the optimizer state",
               {.time_factor = 1.1,
                .memory_factor = 0.8,
                .words = "Each rank updates a part of the parameters, and the ranks then exchange them."}),
      zero_row(2, "ZeRO-2", "the optimizer state and the gradients",
               {.time_factor = 1.15,
                .memory_factor = 0.75,
                .words = "Gradients are divided in backward. Models that are smaller than four buckets save nothing."}),
      zero_row(3, "ZeRO-3", "the optimizer state, the gradients and the parameters",
               {.time_factor = 1.5,
                .memory_factor = 0.6,
                .words = "Each rank gathers parameters when an operator uses them, in forward and in backward."}),
      tensor_row(),
      context_row(),
      pipeline_row(),
      replicas_row(),
      reproducible_row()};
  for (const ParallelTechnique& row : rows) registry.add(with_conflicts(row));
}

std::string techniques_page(const Registry<ParallelTechnique>& registry) {
  std::string page =
      "# Techniques for several ranks\n\n`bellows ladder --ranks N` measures these techniques, in the order of this "
      "page. "
      "Each is compared with one process, whose threads the ranks share. The factors of time and memory are "
      "relative "
      "to this process, and memory is that of one rank. They are estimates: measure your model on your machine.\n";
  for (const ParallelTechnique& row : registry.rows()) page += technique_section(row);
  return page;
}

}  // namespace bellows::train
