#include "bellows/train/step/operator_rules.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/core/seed.h"
#include "bellows/train/recipe/recipe_error.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

Recipe with(Recipe recipe, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) recipe.set(setting);
  return recipe;
}

/// The values of `x`, written by an operator that has no deterministic kernel.
at::Tensor put_copy(const at::Tensor& x) {
  at::Tensor copy = at::zeros_like(x);
  return copy.put_(at::arange(x.numel()), x.detach());
}

Job job_with_put(const Recipe& recipe) {
  Job job = make_job(recipe);
  job.loss = [loss = job.loss](const data::Batch& batch) {
    StepOutput output = loss(batch);
    output.loss = output.loss + put_copy(output.loss);
    return output;
  };
  return job;
}

struct PutNetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return linear(x) + put_copy(x.slice(1, 0, 3)); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(8, 3));
};
TORCH_MODULE(PutNet);

}  // namespace

TEST(OperatorRules, DeterministicOperatorsKeepTheirResults) {
  const Recipe plain = digits_recipe();
  EXPECT_EQ(losses_of(with(plain, {"deterministic=true", "require_seed=true"})), losses_of(plain));
}

TEST(OperatorRules, OperatorWithoutADeterministicKernelIsRefused) {
  for (const char* compile : {"compile=none", "compile=step"}) {
    const Recipe plain = with(digits_recipe(), {compile, "model=mlp"});
    EXPECT_NO_THROW(TrainLoop(job_with_put(plain)).step());
    TrainLoop loop(job_with_put(with(plain, {"deterministic=true"})));
    const std::string error = error_of([&] { loop.step(); });
    EXPECT_THAT(error, HasSubstr("train: deterministic = true, but the operator put_ has no deterministic kernel on "
                                 "device cpu. Replace the operator in the model or the loss, or set deterministic: "
                                 "false."))
        << compile;
    EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  }
}

TEST(OperatorRules, EvaluationRefusesTheSameOperators) {
  const Model model = Model::of(PutNet());
  const data::Dataset data = blobs(32);
  EXPECT_EQ(Trainer(Recipe{}).evaluate(model, data).samples, 32);
  EXPECT_THROW(Trainer(with(Recipe{}, {"deterministic=true"})).evaluate(model, data), RecipeError);
}

TEST(OperatorRules, OtherErrorsArePassedOn) {
  const Recipe recipe = with(Recipe{}, {"deterministic=true"});
  EXPECT_THAT(error_of([&] { with_operator_rules(recipe, [] {
                               at::mm(at::ones({2, 3}), at::ones({2, 3}));
                             }); }),
              HasSubstr("mat1 and mat2 shapes cannot be multiplied"));
}

TEST(OperatorRules, RequireSeedNeedsTheKeySeed) {
  EXPECT_THAT(
      error_of([] { Recipe::parse("require_seed: true", "my.yaml"); }),
      HasSubstr("recipe: my.yaml: require_seed = true, but the key seed is missing. Add a line such as `seed: 1`."));
  EXPECT_TRUE(Recipe::parse("seed: 7\nrequire_seed: true").require_seed);
  EXPECT_NO_THROW(Recipe::parse("require_seed: false"));
}

/// In a process of its own, because a process that has called seed_everything() counts as seeded.
TEST(OperatorRules, RandomNumbersBeforeASeedAreRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Recipe recipe = with(Recipe{}, {"require_seed=true"});
        const std::string error = error_of([&] { with_operator_rules(recipe, [] { at::rand({3}); }); });
        with_operator_rules(Recipe{}, [] { at::rand({3}); });
        seed_everything(1);
        with_operator_rules(recipe, [] { at::rand({3}); });
        const bool refused = error.find("expected a seed before the first random operator, but aten::") != error.npos;
        std::_Exit(refused ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace bellows::train
