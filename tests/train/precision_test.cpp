#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "bellows/optim/optimizers.h"
#include "bellows/train/step/train_loop.h"
#include "bellows/train/trainer.h"
#include "tests/support/errors.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

struct PrecisionCase {
  const char *precision, *level, *optimizer, *impl;
};

Recipe precision_recipe(const PrecisionCase& which) {
  Recipe recipe = digits_recipe();
  recipe.precision = which.precision;
  recipe.amp_level = which.level;
  recipe.optimizer = which.optimizer;
  recipe.optimizer_impl = which.impl;
  if (recipe.optimizer != "sgd") recipe.lr = recipe.optimizer == "adagrad" ? 0.02 : 0.002;
  if (recipe.optimizer == "lion") recipe.lr = 0.0005;
  return recipe;
}

std::vector<double> losses_after(TrainLoop& loop, int64_t steps) {
  loop.run_steps(steps);
  return loop.take_losses();
}

}  // namespace

class TrainPrecision : public testing::TestWithParam<PrecisionCase> {};

// The loss falls as in fp32, and a loop that takes over in the middle goes on with the same bits: weights, masters,
// optimizer, loss scale, training accuracy.
TEST_P(TrainPrecision, LearnsAndResumesBitForBit) {
  const Recipe recipe = precision_recipe(GetParam());
  TrainLoop whole(make_job(recipe));
  std::vector<double> expected = losses_after(whole, 20);
  EXPECT_LT(expected.back(), 0.6 * expected.front());

  TrainLoop first(make_job(recipe));
  std::vector<double> losses = losses_after(first, 8);
  const checkpoint::State state = first.state();
  TrainLoop second(make_job(recipe));
  second.restore(state);
  for (const double loss : losses_after(second, 12)) losses.push_back(loss);
  EXPECT_EQ(losses, expected);
  EXPECT_EQ(second.take_accuracy(), whole.take_accuracy());
}

INSTANTIATE_TEST_SUITE_P(
    Levels, TrainPrecision,
    testing::Values(PrecisionCase{"fp32", "O1", "adam", "auto"}, PrecisionCase{"fp32", "O1", "rmsprop", "fused"},
                    PrecisionCase{"fp32", "O1", "adagrad", "auto"}, PrecisionCase{"fp32", "O1", "lion", "auto"},
                    PrecisionCase{"bf16", "O2", "adafactor", "auto"}, PrecisionCase{"bf16", "O1", "sgd", "auto"},
                    PrecisionCase{"bf16", "O2", "sgd", "auto"}, PrecisionCase{"bf16", "O2", "adamw", "loop"},
                    PrecisionCase{"bf16", "O2", "adamw", "foreach"}, PrecisionCase{"bf16", "O3", "sgd", "auto"},
                    PrecisionCase{"fp16", "O1", "sgd", "auto"}, PrecisionCase{"fp16", "O1", "adamw", "loop"},
                    PrecisionCase{"fp16", "O2", "sgd", "auto"}));

TEST(TrainPrecision, WeightsAreWhatTheLevelSays) {
  const auto dtypes = [](const char* level) {
    const Job job = make_job(precision_recipe({"bf16", level, "sgd", "auto"}));
    std::set<at::ScalarType> found;
    for (const at::Tensor& weight : job.model.parameters()) found.insert(weight.scalar_type());
    return found;
  };
  EXPECT_EQ(dtypes("O1"), (std::set<at::ScalarType>{at::kFloat}));
  EXPECT_EQ(dtypes("O2"), (std::set<at::ScalarType>{at::kFloat, at::kBFloat16}));
  EXPECT_EQ(dtypes("O3"), (std::set<at::ScalarType>{at::kBFloat16}));
}

// The optimizer begins with the weights as they were made, not with their rounded copies.
TEST(TrainPrecision, MastersAreTheWeightsBeforeRounding) {
  const Job low = make_job(precision_recipe({"bf16", "O2", "sgd", "auto"}));
  const Job full = make_job(precision_recipe({"fp32", "O1", "sgd", "auto"}));
  const auto& optimizer = dynamic_cast<const optim::LibtorchOptimizer&>(*low.optimizers.front());
  const auto weights = low.model.parameters(), originals = full.model.parameters();
  ASSERT_EQ(weights.size(), originals.size());
  int masters = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].scalar_type() != at::kBFloat16) continue;
    EXPECT_TRUE(optimizer.master_weight(weights[i]).equal(originals[i])) << i;
    ++masters;
  }
  EXPECT_GT(masters, 5);
}

TEST(TrainPrecision, WhatDoesNotGoTogetherIsSaid) {
  Recipe recipe = precision_recipe({"fp16", "O2", "sgd", "loop"});
  EXPECT_THAT(message_of([&] { recipe.validate(); }), testing::HasSubstr("optimizer_impl fused or auto, got loop"));
  recipe = precision_recipe({"fp32", "O1", "rmsprop", "auto"});
  recipe.optimizer_state = "int8";
  EXPECT_THAT(message_of([&] { recipe.validate(); }),
              testing::HasSubstr("sgd, adam, adamw and lion, got optimizer = rmsprop"));
  recipe = precision_recipe({"bf16", "O2", "sgd", "auto"});
  Job job = make_job(precision_recipe({"fp32", "O1", "sgd", "auto"}));
  EXPECT_THAT(message_of([&] { Trainer(recipe).fit(job.model, *job.optimizers.front(), job.loss, job.train); }),
              testing::HasSubstr("amp::apply"));
}

TEST(TrainMetrics, EveryModeCountsTheSame) {
  const auto accuracy = [](const char* mode) {
    Recipe recipe = digits_recipe();
    recipe.train_metrics = mode;
    TrainLoop loop(make_job(recipe));
    loop.run_steps(15);
    return loop.take_accuracy();
  };
  const double counted = accuracy("sync");
  EXPECT_GT(counted, 0.2);
  EXPECT_LT(counted, 1);
  EXPECT_EQ(accuracy("device"), counted);
  EXPECT_TRUE(std::isnan(accuracy("none")));
}

}  // namespace bellows::train
