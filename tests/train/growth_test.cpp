// Batches and images that grow, and the learning rates that go with every step.
#include "bellows/train/step/growth.h"

#include <gtest/gtest.h>

#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/state.h"
#include "bellows/train/step/train_loop.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

/// The rate of each step of a run on 64 samples, 4 steps an epoch.
std::vector<double> rates_of(Recipe recipe) {
  const Model model = dropout_net();
  const auto sgd = std::make_shared<optim::SGD>(model.parameters(), optim::SGDOptions{.lr = 1, .momentum = 0.9});
  TrainLoop loop(Job{recipe, model, {sgd}, cross_entropy_loss(model), blobs(64), {}});
  std::vector<double> rates;
  while (loop.epoch() < recipe.epochs) {
    loop.step();
    rates.push_back(optim::get_lr(*sgd));
  }
  return rates;
}

}  // namespace

TEST(Growth, BatchesDoubleUpToTheirSize) {
  Recipe recipe;
  recipe.batch_size_start = 4;
  recipe.growth_epochs = 4;
  const Growth growth(recipe, blobs(64).batch(32), 1);
  std::vector<int64_t> sizes, steps;
  for (int epoch = 0; epoch < 6; ++epoch) {
    sizes.push_back(growth.batch_size(epoch));
    steps.push_back(growth.steps(epoch));
    EXPECT_EQ(growth.data(epoch).loader().batch_size(), sizes.back());
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{4, 4, 8, 16, 32, 32}));
  EXPECT_EQ(steps, (std::vector<int64_t>{16, 16, 8, 4, 2, 2}));
  EXPECT_EQ(growth.total_steps(6), 48);
  EXPECT_EQ(growth.total_steps(3), 40);
}

TEST(Growth, ImagesGrowInMultiplesOfFour) {
  Recipe recipe;
  recipe.image_size = 32;
  recipe.image_size_start = 16;
  recipe.growth_epochs = 3;
  const Growth growth(recipe, blobs(64), 1);
  std::vector<int64_t> sizes;
  for (int epoch = 0; epoch < 4; ++epoch) sizes.push_back(growth.image_size(epoch));
  EXPECT_EQ(sizes, (std::vector<int64_t>{16, 20, 24, 0}));
}

TEST(Growth, TheLoopFollowsAndGoesOnAlikeAfterAResume) {
  const TemporaryFolder folder;
  Recipe recipe = digits_recipe();
  recipe.image_size = 16;
  recipe.image_size_start = 8;
  recipe.batch_size = 64;
  recipe.batch_size_start = 16;
  recipe.growth_epochs = 2;
  recipe.epochs = 3;
  TrainLoop loop(make_job(recipe));
  EXPECT_EQ(loop.steps_per_epoch(), 23);  // 360 digits by 16
  loop.run_steps(30);
  EXPECT_EQ(loop.epoch(), 1);
  EXPECT_EQ(loop.batch_size(), 32);
  checkpoint::save(folder / "half.pt", loop.state());
  loop.run_steps(20);
  TrainLoop other(make_job(recipe));
  other.restore(checkpoint::load(folder / "half.pt"));
  other.run_steps(20);
  EXPECT_EQ(loop.epoch(), 4);
  expect_same_bits(copies_of(loop.job().model), copies_of(other.job().model));
}

TEST(Rates, EachScheduleIsOneLineOfTheRecipe) {
  Recipe recipe;
  recipe.epochs = 2;
  EXPECT_EQ(rates_of(recipe), std::vector<double>(8, 1.0));
  recipe.lr_schedule = "linear";
  recipe.lr_schedule_end = 0.2;
  EXPECT_DOUBLE_EQ(rates_of(recipe)[4], 0.6);
  recipe.lr_schedule = "cosine";
  EXPECT_DOUBLE_EQ(rates_of(recipe)[4], 0.6);
  EXPECT_GT(rates_of(recipe)[2], 0.8);
  recipe.lr_schedule = "step";
  EXPECT_EQ(rates_of(recipe)[3], 1);
  EXPECT_DOUBLE_EQ(rates_of(recipe)[4], 0.1);
  EXPECT_DOUBLE_EQ(rates_of(recipe)[7], 0.01);
  recipe.lr_schedule = "one_cycle";
  const std::vector<double> cycle = rates_of(recipe);
  EXPECT_NEAR(cycle[0], 0.04, 1e-12);
  EXPECT_GT(*std::max_element(cycle.begin(), cycle.end()), 0.95);
  EXPECT_DOUBLE_EQ(cycle[7], 0.2);
  recipe.lr_schedule = "inverse_sqrt";
  EXPECT_DOUBLE_EQ(rates_of(recipe)[3], 0.5);
}

TEST(Rates, AWarmUpStandsInFront) {
  Recipe recipe;
  recipe.epochs = 3;
  recipe.warmup_epochs = 1;
  recipe.lr_schedule = "linear";
  const std::vector<double> rates = rates_of(recipe);
  EXPECT_DOUBLE_EQ(rates[0], 0.25);
  EXPECT_DOUBLE_EQ(rates[3], 1);
  EXPECT_DOUBLE_EQ(rates[4], 1);
  EXPECT_DOUBLE_EQ(rates[6], 0.75);
}

TEST(Rates, AWarmUpCountsTheStepsOfGrowingBatches) {
  Recipe recipe;
  recipe.epochs = 3;
  recipe.warmup_epochs = 2;
  recipe.batch_size_start = 8;
  recipe.growth_epochs = 1;
  const std::vector<double> rates = rates_of(recipe);  // 8 steps of 8, then 4 of 16 an epoch
  EXPECT_DOUBLE_EQ(rates[11], 1);
  EXPECT_LT(rates[10], 1);
}

TEST(Growth, AnAbsurdLengthIsRefused) {
  Recipe recipe;
  recipe.batch_size_start = 8;
  recipe.growth_epochs = 1e300;
  EXPECT_THROW(recipe.validate(), c10::ValueError);
}

TEST(Recipes, PairsThatDoNotGoTogetherAreRefused) {
  Recipe recipe;
  recipe.lr_schedule = "one_cycle";
  recipe.warmup_epochs = 1;
  EXPECT_THROW(recipe.validate(), c10::ValueError);
  recipe = {};
  recipe.precision = "fp16";
  recipe.amp_level = "O2";
  recipe.max_grad_norm = 1;
  EXPECT_THROW(recipe.validate(), c10::ValueError);
  recipe = {};
  recipe.log = "foo";
  EXPECT_THROW(recipe.validate(), c10::ValueError);
}

TEST(Rates, SmallerBatchesTakeSmallerSteps) {
  Recipe recipe;
  recipe.epochs = 3;
  recipe.batch_size_start = 4;
  recipe.growth_epochs = 2;
  const std::vector<double> rates = rates_of(recipe);  // 16 steps of 4, 8 of 8, 4 of 16
  EXPECT_DOUBLE_EQ(rates.front(), 0.25);
  EXPECT_DOUBLE_EQ(rates[16], 0.5);
  EXPECT_DOUBLE_EQ(rates.back(), 1);
  EXPECT_EQ(rates.size(), 28U);
}

TEST(Rates, OneCycleSwingsTheMomentumAgainstTheRate) {
  Recipe recipe;
  recipe.epochs = 2;
  recipe.lr_schedule = "one_cycle";
  const Model model = dropout_net();
  const auto sgd = std::make_shared<optim::SGD>(model.parameters(), optim::SGDOptions{.lr = 1, .momentum = 0.9});
  TrainLoop loop(Job{recipe, model, {sgd}, cross_entropy_loss(model), blobs(64), {}});
  loop.step();
  EXPECT_DOUBLE_EQ(optim::get_momentum(sgd->param_groups().front().options()), 0.95);
  loop.run_steps(7);
  EXPECT_DOUBLE_EQ(optim::get_momentum(sgd->param_groups().front().options()), 0.95);
  loop.run_steps(3);  // behind its end the rate stays where it was
  EXPECT_LT(optim::get_lr(*sgd), 1e-3);
}

}  // namespace bellows::train
