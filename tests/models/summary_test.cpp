#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "bellows/models/mlp.h"
#include "bellows/models/resnet.h"
#include "bellows/models/summary.h"

namespace bellows::models {

namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// A model that is no torch::nn module: only its tensors are known.
class OneTensor final : public Model::Impl {
 public:
  at::Tensor forward(const at::Tensor& input) override { return torch::linear(input, weight_); }
  NamedTensors named_parameters() const override { return {{"head.out.weight", weight_}}; }
  NamedTensors named_buffers() const override { return {}; }
  void set_training(bool on) override { training_ = on; }
  bool training() const override { return training_; }
  void to(c10::Device) override {}

 private:
  at::Tensor weight_ = torch::zeros({3, 4});
  bool training_ = true;
};

}  // namespace

TEST(Summary, ListsModulesWithShapesAndTotals) {
  const Model model = resnet18({.num_classes = 10});
  model.parameters()[0].set_requires_grad(false);
  const std::string text = summary(model, {2, 3, 64, 64});
  EXPECT_THAT(text, HasSubstr("resnet18, input [2, 3, 64, 64]"));
  EXPECT_THAT(text, ContainsRegex("conv1 +Conv2d +\\[2, 64, 32, 32\\] +9,408 +36\\.8 KiB"));
  EXPECT_THAT(text, ContainsRegex("layer1 +Sequential +147,968 "));
  EXPECT_THAT(text, ContainsRegex("  0 +BasicBlock +73,984 "));
  EXPECT_THAT(text, ContainsRegex("    bn2 +BatchNorm2d +\\[2, 64, 16, 16\\] +128 "));
  EXPECT_THAT(text, ContainsRegex("fc +Linear +\\[2, 10\\] +5,130 +20\\.0 KiB"));
  // 11,689,512 of torchvision's ResNet-18, its last layer with 10 instead of 1000 classes.
  EXPECT_THAT(text, HasSubstr("parameters: 11,181,642, trainable: 11,172,234\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(Summary, LeavesTheModelAsItWas) {
  const Model model = digits_resnet();
  const at::Tensor mean = model.named_buffers()[0].second.clone();
  EXPECT_TRUE(model.training());
  summary(model, {4, 1, 8, 8});
  EXPECT_TRUE(model.training());
  EXPECT_TRUE(torch::equal(model.named_buffers()[0].second, mean));
  EXPECT_THROW(summary(model, {4, 2, 8, 8}), c10::Error);
  EXPECT_TRUE(model.training());
}

TEST(Summary, WithoutInputSizesThereAreNoShapes) {
  const std::string text = summary(mlp());
  EXPECT_THAT(text, ContainsRegex("layers +ModuleList +26,122"));
  EXPECT_THAT(text, Not(HasSubstr("[")));
}

TEST(Summary, ModelsOfAnotherKindAreListedByTheirTensorsNames) {
  const Model model("other", std::make_shared<OneTensor>());
  const std::string text = summary(model, {5, 4});
  EXPECT_THAT(text, ContainsRegex("head +12 +48 B"));
  EXPECT_THAT(text, ContainsRegex("  out +\\[5, 3\\] +12 +48 B"));
}

TEST(Summary, ShowsEveryInputOfAModelWithSeveral) {
  struct Pair : torch::nn::Module {
    Pair() { part = register_module("part", torch::nn::Linear(4, 3)); }
    at::Tensor forward(const at::Tensor& left, const at::Tensor& right) { return part->forward(left - right).norm(); }
    torch::nn::Linear part{nullptr};
  };
  const Model model = Model::of(std::make_shared<Pair>(), {"left", "right"}, {"distance"}, "pair");
  const std::string text = summary(model, {{"left", torch::zeros({5, 4})}, {"right", torch::zeros({5, 4})}});
  EXPECT_THAT(text, HasSubstr("pair, left [5, 4], right [5, 4]\n"));
  EXPECT_THAT(text, ContainsRegex("part +Linear +\\[5, 3\\] +15 "));
}

}  // namespace bellows::models
