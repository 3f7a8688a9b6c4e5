#include "bellows/train/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/train/rehearsal.h"

namespace bellows::train {

namespace {

Recipe recipe_for(const std::string& model, const std::string& optimizer = "adamw",
                  const std::string& precision = "fp32") {
  Recipe recipe;
  recipe.model = model;
  recipe.optimizer = optimizer;
  recipe.precision = precision;
  return recipe;
}

struct Configuration {
  Recipe recipe;
  StepSize size;
};

}  // namespace

TEST(Plan, LawsAreFoundThroughTheHeapsRounding) {
  const std::vector<StepSize> sizes = {{2, 32}, {3, 32}, {2, 64}};
  const StepSize wanted{32, 512};
  const auto predicted = [&](auto bytes) {
    std::vector<int64_t> seen;
    for (const StepSize& size : sizes) seen.push_back(bytes(size) + (bytes(size) > (128 << 10) ? 4000 : 24));
    const SizeLaw law = fit_size(sizes, seen);
    EXPECT_TRUE(law.fits) << law.to_string();
    return static_cast<double>(law.bytes(wanted)) / static_cast<double>(bytes(wanted));
  };
  EXPECT_NEAR(predicted([](StepSize) { return 1 << 20; }), 1, 0.01);
  EXPECT_NEAR(predicted([](StepSize s) { return 4 * 5000 * s.batch; }), 1, 0.01);
  EXPECT_NEAR(predicted([](StepSize s) { return 4 * 768 * s.batch * s.length; }), 1, 0.03);
  EXPECT_NEAR(predicted([](StepSize s) { return 48 * s.batch * s.length * s.length; }), 1, 0.01);
  EXPECT_NEAR(predicted([](StepSize s) { return (1 << 20) + 4 * 768 * s.batch * s.length; }), 1, 0.03);
  EXPECT_FALSE(fit_size(sizes, {1 << 20, 1 << 19, 3 << 20}).fits);
}

TEST(Plan, PredictsStepsThatWereNotTaken) {
  const std::vector<Configuration> configurations = {{recipe_for("mlp", "sgd"), {512, 0}},
                                                     {recipe_for("digits_resnet"), {64, 0}},
                                                     {recipe_for("bert-20m", "adamw", "bf16"), {8, 96}},
                                                     {recipe_for("encoder_decoder"), {16, 13}}};
  for (const auto& [recipe, size] : configurations) {
    const MemoryPlan plan = plan_memory(recipe, size);
    const auto measured = static_cast<double>(Rehearsal(recipe).measure(size));
    EXPECT_NEAR(static_cast<double>(plan.peak_bytes()) / measured, 1, 0.05) << recipe.model << "\n"
                                                                            << plan.step.to_string();
    for (const StepSize& small : plan.rehearsed) EXPECT_LT(small.batch, size.batch);
  }
}

}  // namespace bellows::train
