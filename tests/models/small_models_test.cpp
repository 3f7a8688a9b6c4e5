#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/core/seed.h"
#include "bellows/models/mlp.h"
#include "bellows/models/registry.h"
#include "bellows/models/resnet.h"
#include "tests/models/golden.h"
#include "tests/support/errors.h"

namespace bellows::models {

namespace {

at::Tensor images(int64_t index) {
  return formula_uniform("input" + std::to_string(index), {16, 1, 8, 8}).to(torch::kFloat32);
}

at::Tensor golden_logits(const char* key) {
  const auto values = golden::read("small_models.json").at(key).get<std::vector<double>>();
  return torch::tensor(values, torch::kFloat64).to(torch::kFloat32).view({16, 10});
}

}  // namespace

// Three passes in train mode move the running statistics; then the answer in eval mode depends on all of the state.
TEST(SmallModels, DigitsResNetEqualsPython) {
  const Model model = digits_resnet({.width = 2});
  set_formula_weights(model);
  model.train();
  {
    const torch::NoGradGuard no_grad;
    for (int64_t i = 0; i < 3; ++i) model.forward(images(i));
  }
  model.eval();
  const at::Tensor logits = model.forward(images(0));
  EXPECT_TRUE(torch::allclose(logits, golden_logits("digits_resnet_w2"), 1e-4, 1e-5)) << logits;
}

TEST(SmallModels, MlpEqualsPython) {
  const Model model = mlp({.hidden = {32, 16}});
  set_formula_weights(model);
  EXPECT_TRUE(torch::allclose(model.forward(images(0)), golden_logits("mlp_64_32_16_10"), 1e-5, 1e-6));
}

TEST(SmallModels, MlpDropsOnlyInTraining) {
  const Model model = mlp({.dropout = 0.5});
  seed_everything(1);
  EXPECT_FALSE(torch::equal(model.forward(images(0)), model.forward(images(0))));
  model.eval();
  EXPECT_TRUE(torch::equal(model.forward(images(0)), model.forward(images(0))));
}

TEST(SmallModels, DigitsResNetHasItsOptions) {
  const Model model = digits_resnet({.num_classes = 7, .in_channels = 3, .width = 4, .blocks = 2});
  EXPECT_EQ(model.forward(torch::zeros({2, 3, 9, 11})).sizes(), (std::vector<int64_t>{2, 7}));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : model.named_parameters()) names.push_back(name);
  EXPECT_THAT(names, testing::Contains("layer2.1.conv2.weight"));
  EXPECT_THAT(names, testing::Contains("layer3.0.downsample.0.weight"));
  EXPECT_THAT(names, testing::Not(testing::Contains("layer1.0.downsample.0.weight")));
}

TEST(SmallModels, BadOptionsAreNamed) {
  EXPECT_THAT(message_of([] { resnet18({.num_classes = 0}); }), testing::HasSubstr("resnet18: expected num_classes"));
  EXPECT_THAT(message_of([] { digits_resnet({.width = 0}); }),
              testing::HasSubstr("width and blocks of at least 1, got 0 and 1"));
  EXPECT_THAT(message_of([] { mlp({.hidden = {8, -1}}); }), testing::HasSubstr("[64, 8, -1, 10]"));
  EXPECT_THAT(message_of([] { mlp({.dropout = 1.0}); }), testing::HasSubstr("dropout in [0, 1), got 1"));
  EXPECT_THAT(message_of([] {
                mlp().forward(torch::zeros({2, 1, 9, 9}));
              }),
              testing::HasSubstr("expected 64 values per sample, got an input of [2, 1, 9, 9]"));
}

TEST(ModelRegistry, EveryModelAnswersItsOwnInputShape) {
  const std::vector<std::string> own = {"mlp",       "digits_resnet", "resnet18",    "resnet34",
                                        "resnet50",  "resnet101",     "alexnet",     "vgg11",
                                        "googlenet", "inception_v2",  "inception_v3"};
  for (const std::string& name : own) {
    const ModelEntry& entry = registry().at(name);
    const Model model = entry.make(5, entry.input_shape[0]);
    model.eval();
    const torch::NoGradGuard no_grad;
    const auto [channels, height, width] = entry.input_shape;
    EXPECT_EQ(model.forward(torch::zeros({1, channels, height, width})).sizes(), (std::vector<int64_t>{1, 5}))
        << entry.name;
    EXPECT_EQ(model.name(), entry.name);
  }
}

TEST(ModelRegistry, TakesModelsOfTheUserAndSuggests) {
  register_model({"linear_test", "one layer", {1, 8, 8}, [](int64_t classes, int64_t) {
                    return mlp({.hidden = {}, .num_classes = classes});
                  }});
  EXPECT_EQ(registry().at("linear_test").make(3, 1).named_parameters().size(), 2u);
  EXPECT_THAT(message_of([] {
                register_model({"mlp", "again", {1, 8, 8}, {}});
              }),
              testing::HasSubstr("registered twice"));
  EXPECT_THAT(message_of([] { registry().at("resnet19"); }), testing::HasSubstr("Did you mean \"resnet1"));
}

}  // namespace bellows::models
