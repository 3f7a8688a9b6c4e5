// Lists of augmentations in recipes: the data they give, soft labels in the loss, resume, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/recipe/recipe_error.h"
#include "bellows/train/step/train_metrics.h"
#include "tests/train/run_part.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string all_steps =
    "RandomResizedCrop(scale=(0.5, 1)), RandomHorizontalFlip(p=0.2), ColorJitter(brightness=0.2), "
    "RandAugment(num_ops=1, magnitude=3), MixUp(alpha=0.2), CutMix(alpha=1)";

Recipe augmented_recipe(const std::string& augment) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.image_size = 8;
  recipe.augment = augment;
  return recipe;
}

std::string augment_error(const Recipe& recipe) {
  try {
    resolve(recipe);
  } catch (const c10::Error& error) {
    return user_message(error);
  }
  return "no error";
}

at::Tensor first_images(const Recipe& recipe) {
  data::Loader loader = open_train_data(recipe).loader();
  loader.start(0);
  return (*loader.next())["image"].clone();
}

}  // namespace

TEST(AugmentRecipe, MixedLabelsAreProbabilities) {
  data::Loader loader = open_train_data(augmented_recipe("MixUp")).loader();
  loader.start(0);
  const data::Batch batch = *loader.next();
  EXPECT_EQ(batch["label"].sizes(), (std::vector<int64_t>{32, 10}));
  EXPECT_EQ(batch["label"].scalar_type(), at::kFloat);
  EXPECT_LT(batch["label"].sum(1).sub(1).abs().max().item<float>(), 1e-6f);
  data::Loader held_out = open_eval_data(augmented_recipe("MixUp"))->loader();
  held_out.start(0);
  EXPECT_EQ((*held_out.next())["label"].scalar_type(), at::kLong) << "evaluation is not augmented";
}

TEST(AugmentRecipe, StepsThatSetTheSizeStartFromTheOriginalImages) {
  Recipe recipe = augmented_recipe("CenterCrop(4)");
  const at::Tensor middle = first_images(recipe);
  EXPECT_EQ(middle.sizes(), (std::vector<int64_t>{32, 1, 4, 4}));
  recipe.augment = "none";
  EXPECT_TRUE(torch::equal(middle, first_images(recipe).slice(2, 2, 6).slice(3, 2, 6)));
  recipe.image_size = 6;
  recipe.augment = "CenterCrop(4)";
  EXPECT_TRUE(torch::equal(middle, first_images(recipe))) << "image_size is the size for evaluation";
  recipe.augment = "RandomHorizontalFlip";
  EXPECT_EQ(first_images(recipe).sizes(), (std::vector<int64_t>{32, 1, 6, 6}));
  recipe.augment = "RandomResizedCrop";
  EXPECT_EQ(first_images(recipe).sizes(), (std::vector<int64_t>{32, 1, 6, 6}));
}

TEST(AugmentRecipe, LossesAreEqualForAnyNumberOfThreads) {
  Recipe recipe = augmented_recipe(all_steps);
  const std::vector<double> alone = losses_of(recipe, 14);
  recipe.num_workers = 3;
  EXPECT_EQ(losses_of(recipe, 14), alone);
  recipe.seed = 2;
  EXPECT_NE(losses_of(recipe, 14), alone);
}

TEST(AugmentRecipe, AResumedRunSeesTheSameSamples) {
  const TemporaryFolder one, two;
  Recipe recipe = augmented_recipe(all_steps);
  recipe.num_workers = 2;
  recipe.run_folder = one.path();
  const RunTrace whole = run_part(recipe, false, 0);
  recipe.run_folder = two.path();
  RunTrace parts = run_part(recipe, false, 5);
  const RunTrace rest = run_part(recipe, true, 0);
  parts.losses.insert(parts.losses.end(), rest.losses.begin(), rest.losses.end());
  EXPECT_EQ(parts.losses, whole.losses);
  expect_same_bits(rest.weights, whole.weights);
}

TEST(AugmentRecipe, SoftLabelsTrainAModel) {
  Recipe recipe = augmented_recipe("RandomResizedCrop(scale=(0.7, 1)), MixUp(alpha=0.2), CutMix(alpha=1)");
  recipe.epochs = 12;
  recipe.label_smoothing = 0.1;
  const FitResult result = Trainer(recipe).fit();
  EXPECT_GT(result.history.back().eval_accuracy, 0.8) << "without augmentation: above 0.9";
}

TEST(AugmentRecipe, SoftLabelsGiveTorchsLossAndHits) {
  const at::Tensor logits = torch::tensor({{2.0f, 1.0f, -1.0f}, {0.0f, 3.0f, 0.5f}});
  const at::Tensor soft = torch::tensor({{0.7f, 0.3f, 0.0f}, {0.6f, 0.0f, 0.4f}});
  const Task task{.label_smoothing = 0.1, .outputs = 3};
  const at::Tensor expected = torch::nn::functional::cross_entropy(
      logits, soft, torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(0.1));
  EXPECT_TRUE(torch::equal(task_loss(task, logits, soft), expected));
  const data::Batch batch({{"label", soft}}, {0, 1});
  const OutputLoss loss = output_loss(task);
  EXPECT_TRUE(torch::equal(loss.mean(logits, batch), expected));
  EXPECT_TRUE(torch::equal(loss.items(batch), torch::ones({2}, at::kLong)));
  EXPECT_EQ(count_hits(logits, soft).item<int64_t>(), 1);
  const auto [right, all] = count_right(task, logits, soft);
  EXPECT_EQ(right.item<int64_t>(), 1);
  EXPECT_EQ(all.item<int64_t>(), 2);
}

TEST(AugmentRecipe, KeysThatNeedOneClassPerSampleRefuseMixedLabels) {
  Recipe recipe = augmented_recipe("MixUp");
  recipe.sample_stats = true;
  EXPECT_THAT(augment_error(recipe), AllOf(HasSubstr("augment = MixUp"), HasSubstr("Set sample_stats: false")));
  recipe = augmented_recipe("CutMix");
  recipe.teacher = "mlp";
  EXPECT_THAT(augment_error(recipe), AllOf(HasSubstr("augment = CutMix"), HasSubstr("do not work with a teacher")));
  recipe = augmented_recipe("RandomHorizontalFlip");
  recipe.sample_stats = true;
  EXPECT_EQ(augment_error(recipe), "no error");
  recipe = augmented_recipe("MixUp");
  recipe.loss = "mse";
  recipe.target = "label";
  EXPECT_THAT(augment_error(recipe), HasSubstr("need one class per sample, got loss = mse"));
}

TEST(AugmentRecipe, ListsHaveTwoFormsInYaml) {
  const Recipe text = Recipe::parse("augment: RandomResizedCrop(224, scale=(0.2, 1)), RandomHorizontalFlip\n");
  EXPECT_EQ(text.augment, "RandomResizedCrop(224, scale=(0.2, 1)), RandomHorizontalFlip");
  EXPECT_EQ(Recipe::parse("augment:\n  - RandomResizedCrop(224, scale=(0.2, 1))\n  - RandomHorizontalFlip\n"), text);
  EXPECT_EQ(Recipe::parse(text.to_yaml()), text);
  Recipe set;
  set.set("augment=MixUp(alpha=0.2)");
  EXPECT_EQ(set.augment, "MixUp(alpha=0.2)");
  for (const char* old : {"none", "crop", "crop_flip"})
    EXPECT_EQ(Recipe::parse(c10::str("augment: ", old, "\n")).augment, old);
}

TEST(AugmentRecipe, BadListsAreRefusedWithTheKey) {
  const auto parse_error = [](const std::string& text) {
    try {
      Recipe::parse(text, "my.yaml");
    } catch (const c10::ValueError& error) {
      return user_message(error);
    }
    return std::string("no error");
  };
  EXPECT_THAT(
      parse_error("augment: RandomFlop\n"),
      AllOf(HasSubstr("recipe: my.yaml: augment = \"RandomFlop\": unknown step"), HasSubstr("RandomHorizontalFlip")));
  EXPECT_THAT(parse_error("augment: MixUp(alpha=-1)\n"), HasSubstr("expected an alpha above 0"));
  EXPECT_THAT(parse_error("augment: [MixUp, [CutMix]]\n"), HasSubstr("a list of texts"));
  EXPECT_THAT(parse_error("augment: []\n"), HasSubstr("augment = \"\": expected a name"));
  EXPECT_THAT(parse_error("lr: [1, 2]\n"), HasSubstr("one value"));
}

}  // namespace bellows::train
