#include "bellows/tune/lr_range.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>

#include "bellows/train/job.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::tune {

namespace {

train::Recipe digits_mlp() {
  train::Recipe recipe;
  recipe.data = BELLOWS_SOURCE_DIR "/data/digits";
  recipe.model = "mlp";
  recipe.optimizer = "sgd";
  recipe.lr_schedule = "cosine";  // not used
  recipe.warmup_epochs = 1;       // not used
  return recipe;
}

/// The mean loss of steps 31 to 40 at a constant rate. NaN: training diverges.
double loss_after_training(double lr) {
  train::Recipe recipe = digits_mlp();
  recipe.lr_schedule = "constant";
  recipe.warmup_epochs = 0;
  recipe.lr = lr;
  train::TrainLoop loop(train::make_job(recipe));
  try {
    loop.run_steps(30);
    loop.take_losses();
    loop.run_steps(10);
    double sum = 0;
    for (const double loss : loop.take_losses()) sum += loss / 10;
    return sum;
  } catch (const c10::Error&) {
    return std::nan("");
  }
}

}  // namespace

// fastai.callback.schedule.minimum of fastai 2.8: lrs[losses.argmin()].item() / 10
TEST(LrRange, SuggestsATenthOfTheBestRate) {
  std::vector<LrRangeStep> steps;
  // A logistic curve from 2.3 to 0.3, and then a rise: the loss is smallest at 1.
  for (int i = 0; i <= 60; ++i) {
    const double decades = -5 + i * 0.1, loss = 0.3 + 2 / (1 + std::exp(3 * (decades + 2)));
    steps.push_back({std::pow(10, decades), loss, decades > 1e-9 ? loss + decades : loss});
  }
  EXPECT_NEAR(suggested_lr(steps), 0.1, 1e-12);
  steps.resize(20);  // the loss still falls at 10^-3.1
  EXPECT_NEAR(suggested_lr(steps), std::pow(10, -4.1), 1e-12);
  EXPECT_EQ(suggested_lr({{0.1, 1, 1}, {1, 2, 2}}), 0);
  EXPECT_EQ(suggested_lr({}), 0);
}

// The suggested rate trains better than rates that are a hundred times smaller or larger.
TEST(LrRange, SuggestsARateThatTrainsWell) {
  const LrRange range = lr_range_test(digits_mlp(), {.low = 1e-5, .high = 100, .steps = 80});
  EXPECT_TRUE(range.diverged);
  EXPECT_LT(range.steps.size(), 80u);
  EXPECT_DOUBLE_EQ(range.steps.front().lr, 1e-5);
  ASSERT_GT(range.suggested, 0);
  EXPECT_LT(range.suggested, range.steps.back().lr / 10);  // far from the rate at which training diverges
  const double at_suggested = loss_after_training(range.suggested);
  EXPECT_LT(at_suggested, loss_after_training(range.suggested / 100));
  EXPECT_FALSE(at_suggested > loss_after_training(range.suggested * 100));  // NaN if it diverges
}

TEST(LrRange, RejectsUnusableOptions) {
  EXPECT_THROW(lr_range_test(digits_mlp(), {.low = 0}), c10::ValueError);
  EXPECT_THROW(lr_range_test(digits_mlp(), {.low = 1, .high = 0.1}), c10::ValueError);
  EXPECT_THROW(lr_range_test(digits_mlp(), {.steps = 1}), c10::ValueError);
}

}  // namespace bellows::tune
