#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/techniques/technique_rows.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

namespace {

const char* const another_trajectory = "another trajectory: judged by the time to the target accuracy";

std::string sgd_only(const Recipe& recipe) {
  if (recipe.optimizer == "sgd") return "";
  return "the linear rule is for SGD; the recipe's optimizer is " + recipe.optimizer;
}

Technique progressive_resizing() {
  return {.name = "progressive_resizing",
          .title = "growing images",
          .changes = "The first epochs see images of half the height and width, which grow to their full size.",
          .apply =
              [](Recipe& recipe) {
                recipe.image_size_start = recipe.image_size / 2;
                recipe.growth_epochs = std::max(recipe.growth_epochs, 3.0);
              },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            if (std::string words = pictures_obstacle(recipe); !words.empty()) return words;
            if (recipe.image_size >= 16) return "";
            return recipe.image_size == 0 ? "image_size is not set: images come as they are"
                                          : "the images are small already";
          },
          .expected = {.time_factor = 0.6,
                       .memory_factor = 1,
                       .words = "A step at half the height and width has a quarter of the work; the last epochs cost "
                                "what they did. Of models that take one size of image only, none."},
          .exactness = Exactness::lossy,
          .tolerance = another_trajectory,
          .equal_batch = false,
          .judged_by_target = true,
          .source = "arXiv:2104.00298 (EfficientNetV2: progressive learning); fastai, DAWNBench"};
}

Technique one_cycle() {
  return {
      .name = "one_cycle",
      .title = "one-cycle",
      .changes =
          "The learning rate rises to twice its value and falls to nothing within four epochs, the momentum the other "
          "way round. The run ends there.",
      .apply =
          [](Recipe& recipe) {
            recipe.schedule = "one_cycle";
            recipe.lr *= 2;
            recipe.warmup_epochs = 0;
            recipe.epochs = 4;
          },
      .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
        return recipe.schedule == "constant" ? "" : "the recipe has a schedule: " + recipe.schedule;
      },
      .expected = {.time_factor = 0.8,
                   .memory_factor = 1,
                   .words = "Fewer epochs to the target, if their number is right; a step costs what it did."},
      .exactness = Exactness::lossy,
      .tolerance = another_trajectory,
      .equal_batch = false,
      .judged_by_target = true,
      .source = "arXiv:1708.07120 (super-convergence)"};
}

Technique weight_averaging() {
  return {
      .name = "weight_averaging",
      .title = "weight averaging",
      .changes = "Evaluates a moving average of the weights, in which the noise of single steps is gone.",
      .apply = [](Recipe& recipe) { recipe.ema_decay = 0.95; },
      .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
        return recipe.ema_decay == 0 ? "" : "the recipe averages already";
      },
      .expected = {.time_factor = 0.8,
                   .memory_factor = 1.1,
                   .words = "The average is as good as a decayed learning rate, some epochs earlier; one more copy of "
                            "the weights, read and written once a step."},
      .exactness = Exactness::lossy,
      .tolerance = "training is the same bit for bit; the average is what is evaluated and kept",
      .equal_batch = false,
      .judged_by_target = true,
      .source = "Polyak averaging; arXiv:1803.05407 (SWA)"};
}

Technique batch_growth() {
  return {.name = "batch_growth",
          .title = "growing batches",
          .changes =
              "The first epoch takes batches of a quarter, the second of a half, with a learning rate in proportion.",
          .apply =
              [](Recipe& recipe) {
                recipe.batch_size_start = std::max<int64_t>(1, recipe.batch_size / 4);
                recipe.growth_epochs = std::max(recipe.growth_epochs, 2.0);
              },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            if (recipe.batch_size < 16) return "the batch is small already";
            return sgd_only(recipe);
          },
          .expected = {.time_factor = 0.95,
                       .memory_factor = 1,
                       .words = "More steps while each one teaches most, at a higher cost a sample."},
          .exactness = Exactness::lossy,
          .tolerance = another_trajectory,
          .equal_batch = false,
          .judged_by_target = true,
          .source = "arXiv:1711.00489 (increase the batch size); Megatron-LM's batch-size ramp-up"};
}

Technique larger_batch() {
  return {.name = "larger_batch",
          .title = "larger batch",
          .changes =
              "Doubles the batch and, by the linear rule, the learning rate, which rises to it over the first epoch.",
          .apply =
              [](Recipe& recipe) {
                recipe.batch_size *= 2;
                recipe.lr *= 2;
                if (recipe.schedule != "one_cycle") recipe.warmup_epochs = std::max(recipe.warmup_epochs, 1.0);
              },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            if (recipe.batch_size > 1 << 19) return "the batch is as large as batches may be";
            return sgd_only(recipe);
          },
          .expected = {.time_factor = 0.85,
                       .memory_factor = 1.8,
                       .words = "Fewer steps with the same overhead and larger matrix products; activations double."},
          .exactness = Exactness::lossy,
          .tolerance = another_trajectory,
          .equal_batch = false,
          .source = "arXiv:1706.02677 (Goyal et al.: linear scaling, gradual warm-up)"};
}

}  // namespace

std::vector<Technique> averaging_techniques() {
  return {weight_averaging()};
}

std::vector<Technique> course_techniques() {
  return {progressive_resizing(), one_cycle(), batch_growth(), larger_batch()};
}

}  // namespace bellows::train
