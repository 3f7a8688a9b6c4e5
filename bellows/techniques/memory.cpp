#include <linux/magic.h>
#include <sys/vfs.h>

#include "bellows/techniques/technique_rows.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/step/activations.h"

namespace bellows::train {

namespace {

Technique accumulation() {
  return {
      .name = "accumulation",
      .title = "gradient accumulation",
      .changes =
          "Divides each batch into four parts. One optimizer step then uses the mean of their gradients, weighted "
          "by the number of samples. Recipe: four times the `gradient_accumulation_steps`, a quarter of the "
          "`batch_size`. For a `batch_size` of at least 8, without `optimizer_in_backward`.",
      .apply =
          [](Recipe& recipe) {
            recipe.gradient_accumulation_steps *= 4;
            recipe.batch_size /= 4;
          },
      .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
        if (recipe.optimizer_in_backward) return "optimizer_in_backward takes a step in each backward pass";
        return recipe.batch_size >= 8 ? "" : "the batch is too small to be divided by four";
      },
      .expected = {.time_factor = 1.15,
                   .memory_factor = 0.4,
                   .words =
                       "Activations exist for a quarter of the batch at a time. Matmuls are smaller, and there are "
                       "more operator calls. Compared with one optimizer step per part, it saves three of four "
                       "optimizer steps."},
      .exactness = Exactness::rounding,
      .tolerance =
          "gradients equal those of one batch to rounding (1e-12 in fp64); batch norm sees smaller batches, so models "
          "with batch norm take a different course of training",
      .judged_by_target = true,
      .saves_memory = true,
      .source = "torch.amp examples: gradient accumulation; arXiv:1706.02677 (global batch)"};
}

/// Sets low-bit optimizer state, which requires a fused implementation.
void keep_state_in(Recipe& recipe, const char* bits) {
  recipe.optimizer_state = bits;
  if (recipe.optimizer_impl != "auto") recipe.optimizer_impl = "fused";
}

std::string low_bit_obstacle(const Recipe& recipe, const Machine&) {
  if (recipe.device != "cpu") return "it works on the CPU only";
  if (recipe.optimizer == "sgd" && recipe.momentum == 0) return "sgd without momentum has no state";
  const bool known = recipe.optimizer == "sgd" || recipe.optimizer == "adam" || recipe.optimizer == "adamw" ||
                     recipe.optimizer == "lion";
  return known ? "" : recipe.optimizer + " does not support low-bit state";
}

Technique int8_state() {
  return {
      .name = "int8_state",
      .title = "8-bit optimizer state",
      .changes =
          "Stores the optimizer's moments in one byte each, with one scale per 256 elements. Recipe: "
          "`optimizer_state: int8`. For SGD with momentum, Adam, AdamW and Lion on the CPU.",
      .apply = [](Recipe& recipe) { keep_state_in(recipe, "int8"); },
      .obstacle = low_bit_obstacle,
      .expected =
          {.time_factor = 1.02,
           .memory_factor = 0.8,
           .words =
               "AdamW's 8 bytes per parameter become 2. If the weights exceed the cache, the step moves 16 bytes "
               "per parameter instead of 28 and is no slower. Small models become slower because of the encoding."},
      .exactness = Exactness::lossy,
      .tolerance =
          "moments are accurate to about 1 %, as with bitsandbytes; the final accuracy is the same as with fp32 state",
      .judged_by_target = true,
      .saves_memory = true,
      .source = "bitsandbytes; arXiv:2110.02861"};
}

Technique int4_state() {
  return {
      .name = "int4_state",
      .title = "4-bit optimizer state",
      .changes =
          "Stores the optimizer's moments in half a byte each, with one scale per 128 elements. Recipe: "
          "`optimizer_state: int4`. For SGD with momentum, Adam, AdamW and Lion on the CPU, without `channels_last`.",
      .apply = [](Recipe& recipe) { keep_state_in(recipe, "int4"); },
      .obstacle = [](const Recipe& recipe, const Machine& machine) -> std::string {
        if (recipe.channels_last) return "it needs row-major weights, but channels_last is set";
        return low_bit_obstacle(recipe, machine);
      },
      .expected = {.time_factor = 1.04,
                   .memory_factor = 0.75,
                   .words = "AdamW's 8 bytes per parameter become 1. If the weights exceed the cache, the optimizer "
                            "step is about 1.2× faster than with fp32 state. Small models become slower because of "
                            "the encoding."},
      .exactness = Exactness::lossy,
      .tolerance =
          "moments are accurate to about 10 %, as with torchao; final accuracy within 0.5 points of fp32 state",
      .judged_by_target = true,
      .saves_memory = true,
      .source = "torchao; arXiv:2309.01507"};
}

Technique adafactor() {
  return {.name = "adafactor",
          .title = "Adafactor",
          .changes =
              "Uses Adafactor instead of Adam or AdamW: two vectors per matrix instead of two matrices. Recipe: "
              "`optimizer: adafactor`.",
          .apply = [](Recipe& recipe) { recipe.optimizer = "adafactor"; },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            if (recipe.optimizer_state != "auto") return "the optimizer state is already small (optimizer_state)";
            return recipe.optimizer == "adam" || recipe.optimizer == "adamw" ? "" : "it replaces only adam and adamw";
          },
          .expected = {.time_factor = 1.05,
                       .memory_factor = 0.75,
                       .words = "AdamW's 8 bytes per parameter shrink to almost zero. The course of training "
                                "differs: the update is clipped, and there is no first moment."},
          .exactness = Exactness::lossy,
          .tolerance = "a different optimizer: results can be compared only by the target accuracy",
          .judged_by_target = true,
          .saves_memory = true,
          .source = "transformers.Adafactor; arXiv:1804.04235"};
}

std::string blocks_obstacle(const Recipe& recipe, const Machine&) {
  return recompute_obstacle(recipe);
}

Technique recompute_half() {
  return {
      .name = "recompute_budget",
      .title = "selective activation checkpointing",
      .changes =
          "Recomputes half of the activations that the backward pass of the blocks needs, and keeps the half that "
          "takes longest to compute. Recipe: `recompute: blocks`, `activation_memory_budget: 0.5`. For models that "
          "list their blocks.",
      .apply =
          [](Recipe& recipe) {
            recipe.recompute = "blocks";
            recipe.activation_memory_budget = 0.5;
            recipe.activation_memory_budget_mb = 0;
          },
      .obstacle = blocks_obstacle,
      .expected = {.time_factor = 1.07,
                   .memory_factor = 0.85,
                   .words =
                       "Results of convolutions and matmuls are kept as far as the budget allows, so most operators "
                       "that run twice are cheap. The first three steps measure the time of each operator."},
      .saves_memory = true,
      .source = "arXiv:1604.06174; torch._functorch.config.activation_memory_budget"};
}

Technique recompute_blocks() {
  return {.name = "recompute",
          .title = "activation checkpointing",
          .changes =
              "Keeps only the inputs of the model's blocks, and recomputes all other activations in backward. Recipe: "
              "`recompute: blocks`. For models that list their blocks.",
          .apply =
              [](Recipe& recipe) {
                recipe.recompute = "blocks";
                recipe.activation_memory_budget = 0;
                recipe.activation_memory_budget_mb = 0;
              },
          .obstacle = blocks_obstacle,
          .expected =
              {.time_factor = 1.25,
               .memory_factor = 0.7,
               .words =
                   "Adds one forward pass, which contains at most a third of the matmuls of a step. Backward holds the "
                   "activations of one block at a time. It saves more memory if the model has more "
                   "blocks, and if weights and optimizer state take a smaller share of the peak."},
          .saves_memory = true,
          .source = "torch.utils.checkpoint; arXiv:1604.06174"};
}

constexpr const char* chosen_by_time =
    "activation_memory_budget selects activations by measured times, so different runs would round differently";

Technique bf16_activations() {
  return {.name = "bf16_activations",
          .title = "bf16 activations",
          .changes =
              "Stores the activations for backward in bf16. The forward pass and the weights do not change. Recipe: "
              "`activation_dtype: bf16`. For `precision: fp32`.",
          .apply = [](Recipe& recipe) { recipe.activation_dtype = "bf16"; },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            if (recipe.activation_memory_budget > 0 || recipe.activation_memory_budget_mb > 0) return chosen_by_time;
            return recipe.precision == "fp32" ? ""
                                              : "with " + recipe.precision + ", most activations already have 16 bits";
          },
          .expected = {.time_factor = 1.06,
                       .memory_factor = 0.75,
                       .words = "Four bytes per value become two. Each value is converted once in forward, and in "
                                "backward once for each operator that needs it."},
          .exactness = Exactness::lossy,
          .tolerance = "the loss of a step is exact; gradients are those of activations rounded to 8 significant bits",
          .judged_by_target = true,
          .saves_memory = true,
          .source = "arXiv:2206.11357 (GACT)"};
}

std::string coded_obstacle(const Recipe& recipe, const Machine&) {
  if (recipe.activation_memory_budget > 0 || recipe.activation_memory_budget_mb > 0) return chosen_by_time;
  return recipe.device == "cpu" ? "" : "it works on the CPU only";
}

Technique int8_activations() {
  return {.name = "int8_activations",
          .title = "8-bit activations",
          .changes =
              "Stores the activations for backward in 8 bits, with one value range for each group of 256 values. "
              "Recipe: `activation_dtype: int8`. For the CPU.",
          .apply = [](Recipe& recipe) { recipe.activation_dtype = "int8"; },
          .obstacle = coded_obstacle,
          .expected = {.time_factor = 1.08,
                       .memory_factor = 0.6,
                       .words = "Each value takes 1.03 bytes instead of 4. Each value is encoded once in forward, "
                                "and decoded for each operator that needs it in backward."},
          .exactness = Exactness::lossy,
          .tolerance =
              "the loss of a step is exact; gradients get noise of 1/255 of each group's range, the same for the "
              "same seed and step",
          .judged_by_target = true,
          .saves_memory = true,
          .source = "arXiv:2104.14129 (ActNN); arXiv:2206.11357 (GACT)"};
}

Technique int4_activations() {
  return {.name = "int4_activations",
          .title = "4-bit activations",
          .changes =
              "Stores the activations for backward in 4 bits, with one value range for each group of 256 values. "
              "Recipe: `activation_dtype: int4`. For the CPU.",
          .apply = [](Recipe& recipe) { recipe.activation_dtype = "int4"; },
          .obstacle = coded_obstacle,
          .expected = {.time_factor = 1.07,
                       .memory_factor = 0.55,
                       .words = "Each value takes 0.53 bytes instead of 4. Encoding and decoding work as with 8 "
                                "bits, with less memory traffic."},
          .exactness = Exactness::lossy,
          .tolerance =
              "the loss of a step is exact; gradients get noise of 1/15 of each group's range, the same for the "
              "same seed and step",
          .judged_by_target = true,
          .saves_memory = true,
          .source = "arXiv:2104.14129 (ActNN); arXiv:2206.11357 (GACT)"};
}

/// A folder on disk. It is not /tmp, which some systems keep in memory.
constexpr const char* disk_folder = "/var/tmp";

Technique activation_offload() {
  return {
      .name = "activation_offload",
      .title = "offload to disk",
      .changes =
          "Writes the activations for backward to a file during forward, and reads them ahead of their use in "
          "backward. Recipe: `offload_folder: /var/tmp`, which must be on a disk.",
      .apply = [](Recipe& recipe) { recipe.offload_folder = disk_folder; },
      .obstacle = [](const Recipe&, const Machine&) -> std::string {
        struct statfs disk {};
        if (::statfs(disk_folder, &disk) != 0) return std::string("there is no folder ") + disk_folder;
        return disk.f_type == TMPFS_MAGIC ? std::string(disk_folder) + " is in memory (tmpfs)" : "";
      },
      .expected =
          {.time_factor = 1.5,
           .memory_factor = 0.6,
           .words = "Tensors of at least 64 KB are in memory only during their transfer. Transfers run in parallel "
                    "with the computation, and a slow disk limits the speed. Written pages stay in the OS page cache "
                    "until the OS needs the memory."},
      .saves_memory = true,
      .source = "torch.autograd.graph.save_on_cpu; arXiv:2104.07857 (ZeRO-Infinity)"};
}

Technique step_in_backward() {
  return {.name = "step_in_backward",
          .title = "optimizer in backward",
          .changes =
              "Updates each parameter as soon as backward has computed its gradient, and frees the gradient at once. "
              "Recipe: `optimizer_in_backward: true`.",
          .apply = [](Recipe& recipe) { recipe.optimizer_in_backward = true; },
          .obstacle = [](const Recipe& recipe, const Machine&) { return optimizer_in_backward_conflict(recipe); },
          .expected = {.time_factor = 1.02,
                       .memory_factor = 0.9,
                       .words =
                           "Gradients need only the memory of the largest gradient, instead of 4 bytes per "
                           "parameter. This lowers the peak only if the weights, and not the activations, dominate it. "
                           "The optimizer is called once per parameter, while its gradient is still in the "
                           "cache."},
          .exactness = Exactness::rounding,
          .tolerance =
              "bit-identical for a loss that is a mean over samples; a next-token loss is divided by the number of "
              "tokens before backward instead of after it",
          .saves_memory = true,
          .source = "pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html"};
}

}  // namespace

std::vector<Technique> memory_techniques() {
  return {accumulation(),     int8_state(),       int4_state(),        adafactor(),
          recompute_half(),   recompute_blocks(), bf16_activations(),  int8_activations(),
          int4_activations(), step_in_backward(), activation_offload()};
}

}  // namespace bellows::train
