#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/techniques/technique_rows.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

namespace {

const char* const another_trajectory = "a different course of training: judged by the time to the target accuracy";

std::string sgd_only(const Recipe& recipe) {
  if (recipe.optimizer == "sgd") return "";
  return "the linear scaling rule applies only to SGD, but the optimizer is " + recipe.optimizer;
}

Technique progressive_resizing() {
  return {.name = "progressive_resizing",
          .title = "progressive resizing",
          .changes =
              "The first epochs use images of half the height and width. The image size then grows to the full "
              "size. Recipe: `image_size_start` is half of `image_size`, `growth_epochs` at least 3. For image "
              "models with an `image_size` of at least 16.",
          .apply =
              [](Recipe& recipe) {
                recipe.image_size_start = recipe.image_size / 2;
                recipe.growth_epochs = std::max(recipe.growth_epochs, 3.0);
              },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            if (std::string words = pictures_obstacle(recipe); !words.empty()) return words;
            if (!recipe.teacher_cache.empty()) return "teacher_cache stores outputs for images of one size";
            if (recipe.image_size >= 16) return "";
            return recipe.image_size == 0 ? "image_size is not set, so images are not resized"
                                          : "the images are already small";
          },
          .expected = {.time_factor = 0.6,
                       .memory_factor = 1,
                       .words = "A step at half the height and width needs a quarter of the computation. The last "
                                "epochs cost as much as before. Models that accept only one image size gain nothing."},
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
          "The learning rate rises to twice its value and falls to zero within four epochs. The momentum moves in the "
          "opposite direction. The run ends after these epochs. Recipe: `lr_schedule: one_cycle`, twice the `lr`, "
          "`warmup_epochs: 0`, `epochs: 4`. For recipes with a constant learning rate.",
      .apply =
          [](Recipe& recipe) {
            recipe.lr_schedule = "one_cycle";
            recipe.lr *= 2;
            recipe.warmup_epochs = 0;
            recipe.epochs = 4;
          },
      .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
        return recipe.lr_schedule == "constant"
                   ? ""
                   : "the recipe already has the learning rate schedule " + recipe.lr_schedule;
      },
      .expected =
          {.time_factor = 0.8,
           .memory_factor = 1,
           .words = "Training reaches the target in fewer epochs if the number of epochs is well chosen. The cost of a "
                    "step does not change."},
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
      .changes =
          "Evaluates a moving average of the weights, which removes the noise of individual steps. Recipe: "
          "`ema_decay: 0.95`.",
      .apply = [](Recipe& recipe) { recipe.ema_decay = 0.95; },
      .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
        return recipe.ema_decay == 0 ? "" : "the recipe already averages the weights";
      },
      .expected = {.time_factor = 0.8,
                   .memory_factor = 1.1,
                   .words =
                       "The average reaches the accuracy of weights trained with a decayed learning rate some epochs "
                       "earlier. It needs one more copy of the weights, which is read and written once per step."},
      .exactness = Exactness::lossy,
      .tolerance = "training stays bit-identical; the average is evaluated and saved",
      .equal_batch = false,
      .judged_by_target = true,
      .source = "Polyak averaging; arXiv:1803.05407 (SWA)"};
}

Technique batch_growth() {
  return {.name = "batch_growth",
          .title = "batch-size warm-up",
          .changes =
              "The first epoch uses a quarter of the batch size, and the second epoch uses half of it. The learning "
              "rate is proportional to the batch size. Recipe: `batch_size_start` is a quarter of `batch_size`, "
              "`growth_epochs` at least 2. For SGD with a `batch_size` of at least 16.",
          .apply =
              [](Recipe& recipe) {
                recipe.batch_size_start = std::max<int64_t>(1, recipe.batch_size / 4);
                recipe.growth_epochs = std::max(recipe.growth_epochs, 2.0);
              },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            if (recipe.batch_size < 16) return "the batch is already small";
            return sgd_only(recipe);
          },
          .expected = {.time_factor = 0.95,
                       .memory_factor = 1,
                       .words = "Training takes more steps at the start, when each step improves the model most. "
                                "These steps take more time per sample."},
          .exactness = Exactness::lossy,
          .tolerance = another_trajectory,
          .equal_batch = false,
          .judged_by_target = true,
          .source = "arXiv:1711.00489 (increase the batch size); Megatron-LM's batch-size ramp-up"};
}

Technique larger_batch() {
  return {
      .name = "larger_batch",
      .title = "large batch (linear scaling)",
      .changes =
          "Doubles the batch size and, by the linear scaling rule, the learning rate. The learning rate warms up over "
          "the first epoch. Recipe: twice the `batch_size` and `lr`, `warmup_epochs` at least 1. For SGD.",
      .apply =
          [](Recipe& recipe) {
            recipe.batch_size *= 2;
            recipe.lr *= 2;
            if (recipe.lr_schedule != "one_cycle") recipe.warmup_epochs = std::max(recipe.warmup_epochs, 1.0);
          },
      .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
        if (recipe.batch_size > 1 << 19) return "the batch already has the maximum size";
        return sgd_only(recipe);
      },
      .expected = {.time_factor = 0.85,
                   .memory_factor = 1.8,
                   .words =
                       "Training needs fewer steps, each with the same overhead, and matmuls are larger. Activations "
                       "take twice the memory."},
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
