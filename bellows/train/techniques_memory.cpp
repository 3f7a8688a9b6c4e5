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

}  // namespace

std::vector<Technique> memory_techniques() {
  return {accumulation()};
}

}  // namespace bellows::train
