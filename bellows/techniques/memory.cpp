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
      .title = "accumulation",
      .changes =
          "Divides each batch into four and takes one optimizer step with the mean of their gradients, weighed by "
          "their samples.",
      .apply =
          [](Recipe& recipe) {
            recipe.accumulate *= 4;
            recipe.batch_size /= 4;
          },
      .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
        if (recipe.step_in_backward) return "each backward pass is a step (step_in_backward)";
        return recipe.batch_size >= 8 ? "" : "the batch is too small to be divided by four";
      },
      .expected = {.time_factor = 1.15,
                   .memory_factor = 0.4,
                   .words = "Activations of a quarter of the batch live at a time; smaller products and more calls. "
                            "Against batches of that size with a step each it saves three steps of four."},
      .exactness = Exactness::rounding,
      .tolerance =
          "gradients equal one batch's to rounding (1e-12 in float64); batch norm sees smaller batches, so "
          "models that have it train on another trajectory",
      .judged_by_target = true,
      .saves_memory = true,
      .source = "torch.amp examples: gradient accumulation; arXiv:1706.02677 (global batch)"};
}

/// Only a fused step can.
void keep_state_in(Recipe& recipe, const char* bits) {
  recipe.optimizer_state = bits;
  if (recipe.optimizer_impl != "auto") recipe.optimizer_impl = "fused";
}

std::string low_bit_obstacle(const Recipe& recipe, const Machine&) {
  if (recipe.device != "cpu") return "it has kernels for the CPU only";
  if (recipe.optimizer == "sgd" && recipe.momentum == 0) return "sgd without momentum has no state";
  const bool known = recipe.optimizer == "sgd" || recipe.optimizer == "adam" || recipe.optimizer == "adamw" ||
                     recipe.optimizer == "lion";
  return known ? "" : recipe.optimizer + " has no state in fewer bits";
}

Technique int8_state() {
  return {.name = "int8_state",
          .title = "8-bit state",
          .changes = "Keeps the optimizer's moments in a byte each, with a scale for each 256 elements.",
          .apply = [](Recipe& recipe) { keep_state_in(recipe, "int8"); },
          .obstacle = low_bit_obstacle,
          .expected = {.time_factor = 1.02,
                       .memory_factor = 0.8,
                       .words = "AdamW's 8 bytes a parameter become 2. With weights beyond the cache the step moves 16 "
                                "bytes a parameter instead of 28 and is no slower; small models pay for the coding."},
          .exactness = Exactness::lossy,
          .tolerance = "moments to about 1 % each, within bitsandbytes' rounding; final accuracy as with fp32 state",
          .judged_by_target = true,
          .saves_memory = true,
          .source = "bitsandbytes; arXiv:2110.02861"};
}

Technique int4_state() {
  return {.name = "int4_state",
          .title = "4-bit state",
          .changes = "Keeps the optimizer's moments in half a byte each, with a scale for each 128 elements.",
          .apply = [](Recipe& recipe) { keep_state_in(recipe, "int4"); },
          .obstacle = [](const Recipe& recipe, const Machine& machine) -> std::string {
            if (recipe.channels_last) return "it needs row-major weights, and channels_last is on";
            return low_bit_obstacle(recipe, machine);
          },
          .expected = {.time_factor = 1.04,
                       .memory_factor = 0.75,
                       .words = "AdamW's 8 bytes a parameter become 1. The optimizer's step takes about 1.2 times as "
                                "long, which is little of a training step."},
          .exactness = Exactness::lossy,
          .tolerance = "moments to about 10 %, as torchao's; final accuracy within 0.5 points of fp32 state",
          .judged_by_target = true,
          .saves_memory = true,
          .source = "torchao; arXiv:2309.01507"};
}

Technique adafactor() {
  return {.name = "adafactor",
          .title = "Adafactor",
          .changes = "Takes Adafactor in place of Adam or AdamW: two vectors a matrix instead of two matrices.",
          .apply = [](Recipe& recipe) { recipe.optimizer = "adafactor"; },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            if (recipe.optimizer_state != "auto") return "its state is small already (optimizer_state)";
            return recipe.optimizer == "adam" || recipe.optimizer == "adamw"
                       ? ""
                       : "it takes the place of adam and adamw, with their rates";
          },
          .expected = {.time_factor = 1.05,
                       .memory_factor = 0.75,
                       .words = "AdamW's 8 bytes a parameter become next to none. Another trajectory: the update is "
                                "clipped, and there is no first moment."},
          .exactness = Exactness::lossy,
          .tolerance = "another optimizer: only the target accuracy compares them",
          .judged_by_target = true,
          .saves_memory = true,
          .source = "transformers.Adafactor; arXiv:1804.04235"};
}

std::string blocks_obstacle(const Recipe& recipe, const Machine&) {
  return recompute_obstacle(recipe);
}

Technique recompute_half() {
  return {.name = "recompute_budget",
          .title = "recompute a half",
          .changes = "Computes half of what the blocks' backward needs again, and keeps the half that takes longest.",
          .apply =
              [](Recipe& recipe) {
                recipe.recompute = "blocks";
                recipe.recompute_keep = 0.5;
                recipe.recompute_keep_mb = 0;
              },
          .obstacle = blocks_obstacle,
          .expected = {.time_factor = 1.07,
                       .memory_factor = 0.85,
                       .words = "Convolutions and matrix products are kept as far as the half reaches, so that little "
                                "but cheap operators run twice; the first three steps time each of them."},
          .saves_memory = true,
          .source = "arXiv:1604.06174; torch._functorch.config.activation_memory_budget"};
}

Technique recompute_blocks() {
  return {.name = "recompute",
          .title = "recompute",
          .changes = "Keeps only the inputs of the model's blocks, and computes the rest of each again in backward.",
          .apply =
              [](Recipe& recipe) {
                recipe.recompute = "blocks";
                recipe.recompute_keep = 0;
                recipe.recompute_keep_mb = 0;
              },
          .obstacle = blocks_obstacle,
          .expected = {.time_factor = 1.25,
                       .memory_factor = 0.7,
                       .words = "One more forward pass, a third of a step's products at most; backward holds one "
                                "block's activations at a time. The more blocks, and the less of "
                                "the peak is weights and the optimizer's state, the more it saves."},
          .saves_memory = true,
          .source = "torch.utils.checkpoint; arXiv:1604.06174"};
}

constexpr const char* chosen_by_time =
    "what recompute_keep keeps is chosen by measured times: no run would round as another";

Technique bf16_activations() {
  return {.name = "bf16_activations",
          .title = "bf16 activations",
          .changes = "Keeps what backward needs as bf16; forward and the weights stay as they are.",
          .apply = [](Recipe& recipe) { recipe.activations = "bf16"; },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            if (recipe.recompute_keep > 0 || recipe.recompute_keep_mb > 0) return chosen_by_time;
            return recipe.precision == "fp32" ? "" : "with " + recipe.precision + " most activations have 16 bits";
          },
          .expected = {.time_factor = 1.06,
                       .memory_factor = 0.75,
                       .words = "Four bytes a value become two; each is converted once in forward and once for each "
                                "operator that needs it in backward."},
          .exactness = Exactness::lossy,
          .tolerance = "the loss of a step is exact; gradients are those of activations rounded to 8 significant bits",
          .judged_by_target = true,
          .saves_memory = true,
          .source = "arXiv:2206.11357 (GACT)"};
}

std::string coded_obstacle(const Recipe& recipe, const Machine&) {
  if (recipe.recompute_keep > 0 || recipe.recompute_keep_mb > 0) return chosen_by_time;
  return recipe.device == "cpu" ? "" : "it has kernels for the CPU only";
}

Technique int8_activations() {
  return {
      .name = "int8_activations",
      .title = "8-bit activations",
      .changes = "Keeps what backward needs in 8 bits, in groups of 256 values with a range each.",
      .apply = [](Recipe& recipe) { recipe.activations = "int8"; },
      .obstacle = coded_obstacle,
      .expected = {.time_factor = 1.08,
                   .memory_factor = 0.6,
                   .words = "Four bytes a value become one and a few hundredths; coded once in forward, decoded for "
                            "each operator that needs it in backward."},
      .exactness = Exactness::lossy,
      .tolerance =
          "the loss of a step is exact; gradients get noise of a 255th of each group's range, the same "
          "for the same seed and step",
      .judged_by_target = true,
      .saves_memory = true,
      .source = "arXiv:2104.14129 (ActNN); arXiv:2206.11357 (GACT)"};
}

Technique int4_activations() {
  return {.name = "int4_activations",
          .title = "4-bit activations",
          .changes = "Keeps what backward needs in 4 bits, in groups of 256 values with a range each.",
          .apply = [](Recipe& recipe) { recipe.activations = "int4"; },
          .obstacle = coded_obstacle,
          .expected = {.time_factor = 1.07,
                       .memory_factor = 0.55,
                       .words = "Four bytes a value become a little over half of one; coded and decoded as 8 bits are, "
                                "with less to move."},
          .exactness = Exactness::lossy,
          .tolerance =
              "the loss of a step is exact; gradients get noise of a 15th of each group's range, the "
              "same for the same seed and step",
          .judged_by_target = true,
          .saves_memory = true,
          .source = "arXiv:2104.14129 (ActNN); arXiv:2206.11357 (GACT)"};
}

/// Kept over restarts, and so on a disk; not made for what /tmp is made for on some systems: to stay in memory.
constexpr const char* disk_folder = "/var/tmp";

Technique activation_offload() {
  return {
      .name = "activation_offload",
      .title = "offload to disk",
      .changes = "Writes what backward needs to a file in /var/tmp during forward, and reads it ahead in backward.",
      .apply = [](Recipe& recipe) { recipe.offload_folder = disk_folder; },
      .obstacle = [](const Recipe&, const Machine&) -> std::string {
        struct statfs disk {};
        if (::statfs(disk_folder, &disk) != 0) return std::string("there is no ") + disk_folder;
        return disk.f_type == TMPFS_MAGIC ? std::string(disk_folder) + " is kept in memory" : "";
      },
      .expected = {.time_factor = 1.5,
                   .memory_factor = 0.6,
                   .words = "Tensors of 64 KB and more are in memory only while they are on their way. It is as fast "
                            "as the disk, beside the computation; written pages are the system's cache until it "
                            "needs the room."},
      .saves_memory = true,
      .source = "torch.autograd.graph.save_on_cpu; arXiv:2104.07857 (ZeRO-Infinity)"};
}

Technique step_in_backward() {
  return {.name = "step_in_backward",
          .title = "step in backward",
          .changes = "Steps each parameter as soon as backward has its gradient, and lets go of the gradient at once.",
          .apply = [](Recipe& recipe) { recipe.step_in_backward = true; },
          .obstacle = [](const Recipe& recipe, const Machine&) { return step_in_backward_conflict(recipe); },
          .expected = {.time_factor = 1.02,
                       .memory_factor = 0.9,
                       .words = "Gradients take the memory of the largest one in place of 4 bytes a parameter. Seen "
                                "where weights and not activations make the peak; a call of the optimizer for each "
                                "parameter, whose gradient is still in the cache."},
          .exactness = Exactness::rounding,
          .tolerance =
              "a loss that is a mean over samples gives the same bits; that of next tokens is divided by their number "
              "before backward instead of behind it",
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
