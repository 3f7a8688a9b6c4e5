// The trainer with `device: cuda`: losses near the CPU's, reproducible runs, and the same bits after a resume.
#include <gtest/gtest.h>

#include "bellows/core/seed.h"
#include "bellows/train/trainer.h"
#include "tests/train/run_part.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

Recipe recipe_in(const std::string& folder, const std::vector<std::string>& settings) {
  Recipe recipe = digits_recipe();
  recipe.epochs = 3;
  recipe.optimizer_impl = "auto";
  recipe.run_folder = folder;
  recipe.set("device=cuda");
  for (const std::string& setting : settings) recipe.set(setting);
  return recipe;
}

const std::vector<std::vector<std::string>> variants = {
    {"model=digits_resnet"},
    {"model=mlp", "image_size=8"},
    {"model=digits_resnet", "precision=bf16", "channels_last=true"},
    {"model=digits_resnet", "precision=fp16"},
    {"model=digits_resnet", "optimizer=adamw", "lr=0.005", "optimizer_state=int8"},
    {"model=digits_resnet", "optimizer=adamw", "lr=0.005", "precision=bf16", "optimizer_state=int4"},
    {"model=digits_resnet", "optimizer=lion", "lr=0.0005", "max_grad_norm=1"},
    {"model=digits_resnet", "recompute=blocks"},
    {"model=digits_resnet", "activation_dtype=bf16"},
    {"model=digits_resnet", "gradient_accumulation_steps=2", "ema_decay=0.9"},
    {"model=mlp", "image_size=8", "optimizer_in_backward=true"},
};

}  // namespace

class TrainOnDevice : public testing::TestWithParam<size_t> {};

TEST_P(TrainOnDevice, RepeatsAndResumesToTheSameBits) {
  const std::vector<std::string>& settings = variants[GetParam()];
  const TemporaryFolder one, two;
  const RunTrace whole = run_part(recipe_in(one.path(), settings), false, 0);
  ASSERT_GE(whole.losses.size(), 12u);
  EXPECT_LT(whole.losses.back(), whole.losses.front());
  EXPECT_GT(whole.result.history.back().eval_accuracy, 0.5);
  EXPECT_TRUE(whole.weights.front().is_cuda());
  RunTrace parts = run_part(recipe_in(two.path(), settings), false, 7);
  EXPECT_TRUE(parts.result.stopped);
  seed_everything(999);  // a new process would have other generators
  const RunTrace rest = run_part(recipe_in(two.path(), settings), true, 0);
  parts.losses.insert(parts.losses.end(), rest.losses.begin(), rest.losses.end());
  EXPECT_EQ(parts.losses, whole.losses);
  expect_same_bits(rest.weights, whole.weights);
}

INSTANTIATE_TEST_SUITE_P(Recipes, TrainOnDevice, testing::Range<size_t>(0, variants.size()), [](const auto& variant) {
  std::string name;
  for (const std::string& setting : variants[variant.param]) name += setting + "_";
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

// The same batches in the same order: fp32 differs by roundings alone, which a few steps do not amplify.
TEST(TrainOnDeviceAndCpu, FirstLossesAgree) {
  const TemporaryFolder one, two;
  const std::vector<std::string> settings = {"model=digits_resnet", "epochs=1", "lr=0.01"};
  Recipe on_cpu = recipe_in(one.path(), settings);
  on_cpu.set("device=cpu");
  const RunTrace a = run_part(recipe_in(two.path(), settings), false, 0), b = run_part(on_cpu, false, 0);
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(a.losses[i], b.losses[i], 2e-2 * b.losses[i]) << "step " << i;
}

}  // namespace bellows::train
