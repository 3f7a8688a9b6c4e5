// What becomes of gradients as they arrive: the keys optimizer_in_backward and gradient_accumulation_dtype.
#include <gmock/gmock.h>

#include "bellows/optim/state/state.h"
#include "bellows/plan/plan.h"
#include "bellows/techniques/technique.h"
#include "support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

Recipe recipe_from(const std::vector<std::string>& settings) {
  Recipe recipe = digits_recipe();
  recipe.optimizer_impl = "auto";
  for (const std::string& setting : settings) recipe.set(setting);
  return recipe;
}

/// Weights, state of the optimizer and losses after some steps.
struct Course {
  std::vector<at::Tensor> tensors;
  std::vector<double> losses;
};
Course course_of(const Recipe& recipe, int64_t steps = 6) {
  TrainLoop loop(make_job(recipe));
  loop.run_steps(steps);
  Course course{copies_of(loop.job().model), loop.take_losses()};
  for (const auto& [name, tensor] : optim::state_dict(*loop.job().optimizers.front()))
    course.tensors.push_back(tensor.clone());
  return course;
}

int64_t gradients_in(const Recipe& recipe) {
  return plan_memory(recipe, {2, 0}).peak.of(inspect::TensorKind::gradient);
}

}  // namespace

TEST(GradientKeys, StepsInBackwardTrainWithTheSameBits) {
  for (const char* optimizer : {"sgd", "adamw", "lion", "larc", "lamb", "novograd", "muon"}) {
    const std::string chosen = std::string("optimizer=") + optimizer;
    const std::vector<std::string> others = {chosen, "ema_decay=0.9", "lr_schedule=cosine", "label_smoothing=0.1"};
    Recipe recipe = recipe_from(others);
    const Course plain = course_of(recipe);
    recipe.optimizer_in_backward = true;
    const Course stepped = course_of(recipe);
    SCOPED_TRACE(optimizer);
    EXPECT_EQ(stepped.losses, plain.losses);
    expect_same_bits(stepped.tensors, plain.tensors);
  }
}

/// Packed texts: the mean over tokens is divided by their number before backward, which rounds otherwise.
TEST(GradientKeys, StepsInBackwardDivideByTheTokensThatThereAre) {
  at::manual_seed(1);
  const at::Tensor x = torch::randn({32, 8}), count = torch::full({}, 24, at::kLong);
  const auto weights_after = [&](bool in_backward) {
    Recipe recipe = recipe_from({"optimizer=sgd", "momentum=0", "lr=1", "weight_decay=0"});
    recipe.optimizer_in_backward = in_backward;
    seed_everything(3);
    const Model model = Model::of(torch::nn::Linear(8, 3), "linear");
    const LossFn loss = [model, count](const data::Batch& batch) {
      return StepOutput::sum(model.forward(batch["image"]).square().sum(), count);
    };
    TrainLoop loop({.recipe = recipe,
                    .model = model,
                    .optimizers = {make_optimizer(recipe, model)},
                    .loss = loss,
                    .train = data::Dataset(data::from_tensors({{"image", x}})).batch(32).threads(0)});
    loop.run_steps(1);
    return std::pair(copies_of(model), loop.take_losses().front());
  };
  const auto [plain, plain_loss] = weights_after(false);
  const auto [stepped, stepped_loss] = weights_after(true);
  EXPECT_NEAR(stepped_loss, plain_loss, 1e-6 * plain_loss);
  for (size_t i = 0; i < plain.size(); ++i)
    EXPECT_TRUE(torch::allclose(stepped[i], plain[i], 1e-5, 1e-6)) << "a rounding or two of gradients of about 1";
}

TEST(GradientKeys, StepsInBackwardHoldOneGradientAtATime) {
  const Recipe plain = recipe_from({"model=bert-20m", "optimizer=adamw"});
  Recipe stepped = plain;
  stepped.optimizer_in_backward = true;
  EXPECT_GT(gradients_in(plain), 70'000'000) << "four bytes for each of 20 million";
  EXPECT_LT(gradients_in(stepped), 50'000'000) << "the table of words, the largest";
  EXPECT_LT(plan_memory(stepped, {2, 16}).peak_bytes(), plan_memory(plain, {2, 16}).peak_bytes() - 25'000'000);
}

/// sqrt(0) in front of the loss: the loss is finite, its gradient is not.
TEST(GradientKeys, ABadGradientStopsTheStepThatMadeIt) {
  for (const bool in_backward : {false, true}) {
    Recipe recipe = recipe_from({"optimizer=sgd", "on_nan=stop"});
    recipe.optimizer_in_backward = in_backward;
    const Model model = Model::of(torch::nn::Linear(8, 3), "linear");
    const LossFn loss = [model](const data::Batch& batch) {
      return StepOutput::sum((model.forward(batch["image"]) * 0).square().sum().sqrt(), torch::full({}, 4, at::kLong));
    };
    TrainLoop loop({.recipe = recipe,
                    .model = model,
                    .optimizers = {make_optimizer(recipe, model)},
                    .loss = loss,
                    .train = data::Dataset(data::from_tensors({{"image", torch::ones({8, 8})}})).batch(4).threads(0)});
    const std::string error = error_of([&] { loop.run_steps(1); });
    EXPECT_THAT(error, HasSubstr("a gradient became NaN or infinite at step 1"));
    EXPECT_EQ(error.find("(optimizer_in_backward)") != std::string::npos, in_backward) << error;
  }
}

TEST(GradientKeys, SumsHaveTheirOwnType) {
  const auto type_of = [](const std::vector<std::string>& settings) {
    Recipe recipe = recipe_from(settings);
    TrainLoop loop(make_job(recipe));
    loop.run_steps(2);
    return loop.job().model.parameters().front().grad().scalar_type();
  };
  EXPECT_EQ(type_of({"gradient_accumulation_steps=2"}), at::kFloat);
  EXPECT_EQ(type_of({"gradient_accumulation_steps=2", "gradient_accumulation_dtype=bf16"}), at::kBFloat16);
  EXPECT_EQ(type_of({"precision=bf16", "amp_level=O3"}), at::kBFloat16);
  EXPECT_EQ(type_of({"precision=bf16", "amp_level=O3", "gradient_accumulation_dtype=fp32"}), at::kFloat);
}

TEST(GradientKeys, SumsInFp32BelowFp32WeightsChangeNothing) {
  const Course plain = course_of(recipe_from({"gradient_accumulation_steps=3"}));
  const Course same = course_of(recipe_from({"gradient_accumulation_steps=3", "gradient_accumulation_dtype=fp32"}));
  expect_same_bits(same.tensors, plain.tensors);
  const Course rounded = course_of(recipe_from({"gradient_accumulation_steps=3", "gradient_accumulation_dtype=bf16"}));
  EXPECT_FALSE(torch::equal(rounded.tensors.front(), plain.tensors.front()));
}

TEST(GradientKeys, WhatDoesNotGoWithStepsInBackwardIsSaid) {
  for (const auto& [other, words] : std::vector<std::pair<const char*, const char*>>{
           {"gradient_accumulation_steps=2", "gradient_accumulation_steps = 2"},
           {"max_grad_norm=1", "max_grad_norm = 1"},
           {"max_grad_value=1", "max_grad_value = 1"},
           {"precision=fp16", "fp16"},
           {"on_nan=skip", "on_nan = skip"},
           {"gradient_accumulation_dtype=bf16", "gradient_accumulation_dtype = bf16"}}) {
    const Recipe recipe = recipe_from({"optimizer_in_backward=true", other});
    EXPECT_THAT(error_of([&] { recipe.validate(); }), HasSubstr(words));
    const Recipe before = recipe_from({other});
    EXPECT_THAT(technique_table().at("step_in_backward").obstacle(before, this_machine()), HasSubstr(words));
  }
  const Recipe stepped = recipe_from({"optimizer_in_backward=true"});
  EXPECT_THAT(technique_table().at("accumulation").obstacle(stepped, this_machine()),
              HasSubstr("optimizer_in_backward"));
}

/// A part of the held-out data at a time, such that evaluation needs no more memory than a step does.
TEST(EvaluationBatch, IsTheRecipesWithinLimits) {
  for (const auto& [batch, expected] : std::vector<std::pair<int64_t, int64_t>>{{1, 16}, {64, 64}, {512, 256}}) {
    Recipe recipe = digits_recipe();
    recipe.batch_size = batch;
    EXPECT_EQ(make_job(recipe).eval->loader_options().batch_size, expected) << batch;
  }
}

}  // namespace bellows::train
