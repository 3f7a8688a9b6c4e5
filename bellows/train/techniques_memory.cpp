#include "bellows/train/recipe.h"
#include "bellows/train/technique_rows.h"

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

Technique int8_state() {
  return {.name = "int8_state",
          .title = "8-bit state",
          .changes = "Keeps the optimizer's moments in a byte each, with a scale for each 256 elements.",
          .apply =
              [](Recipe& recipe) {
                recipe.optimizer_state = "int8";
                if (recipe.optimizer_impl != "auto") recipe.optimizer_impl = "fused";
              },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            if (recipe.device != "cpu") return "it has kernels for the CPU only";
            if (recipe.optimizer == "sgd" && recipe.momentum == 0) return "sgd without momentum has no state";
            const bool known = recipe.optimizer == "sgd" || recipe.optimizer == "adam" || recipe.optimizer == "adamw" ||
                               recipe.optimizer == "lion";
            return known ? "" : recipe.optimizer + " has no 8-bit state";
          },
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

}  // namespace

std::vector<Technique> memory_techniques() {
  return {accumulation(), int8_state(), adafactor()};
}

}  // namespace bellows::train
