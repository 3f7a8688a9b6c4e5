#include "bellows/amp/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/amp/advice.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"

namespace bellows::amp {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Model small_resnet() {
  Model model = models::digits_resnet({.width = 8});
  models::set_formula_weights(model);
  return model;
}

at::Tensor image_batch() {
  return models::formula_uniform("input", {8, 1, 8, 8}).to(at::kFloat);
}

std::map<std::string, at::ScalarType> dtypes_of(const NamedTensors& tensors) {
  std::map<std::string, at::ScalarType> result;
  for (const auto& [name, tensor] : tensors) result[name] = tensor.scalar_type();
  return result;
}

/// Losses of `steps` steps of SGD under a policy, on one batch.
std::vector<double> train(const Policy& policy, int steps = 12) {
  auto [model, masters] = apply(small_resnet(), policy);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  masters.attach(optimizer);
  GradScaler scaler(scaler_options(policy));
  const at::Tensor labels = models::formula_labels("labels", 8, 10);
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::cross_entropy_loss(model.forward(image_batch()), labels);
    scaler.scale(loss).backward();
    masters.take_gradients();
    scaler.step(optimizer);
    scaler.update();
    masters.write_back();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

}  // namespace

TEST(Policy, LevelsAreApexs) {
  EXPECT_EQ(policy("O0", at::kHalf), Policy{});
  const Policy o1 = policy("O1"), o2 = policy("O2", at::kHalf), o3 = policy("O3");
  EXPECT_TRUE(o1.autocast && !o1.low_weights && !o1.master_weights && !o1.loss_scaling);
  EXPECT_TRUE(o2.autocast && o2.low_weights && o2.norms_fp32 && o2.master_weights && o2.loss_scaling);
  EXPECT_TRUE(!o3.autocast && o3.low_weights && !o3.norms_fp32 && !o3.master_weights);
  EXPECT_EQ(policy("02"), policy("O2"));  // as documents print it
  EXPECT_TRUE(scaler_options(policy("O1", at::kHalf)).enabled);
  EXPECT_FALSE(scaler_options(policy("O1", at::kHalf)).allow_fp16);
  EXPECT_TRUE(scaler_options(policy("O3", at::kHalf)).allow_fp16);
  EXPECT_FALSE(scaler_options(policy("O2", at::kBFloat16)).enabled);
}

TEST(Policy, SaysWhatItDoes) {
  EXPECT_EQ(describe(policy("O2", at::kBFloat16)),
            "O2 bf16\n  weights    bf16; norms fp32\n  forward    autocast: matmuls and convolutions in bf16; losses "
            "and operators that may overflow in fp32\n  boundary   input is cast to bf16, output to fp32\n  gradients  "
            "bf16; norms fp32\n  optimizer  works on fp32 master weights, rounded to bf16 after each step\n  loss      "
            " not scaled");
  EXPECT_THAT(describe(policy("O0")), HasSubstr("all operators in fp32"));
  EXPECT_THAT(describe(policy("O1", at::kHalf)), HasSubstr("weights are cast once per step"));
  EXPECT_THAT(describe(policy("O1", at::kHalf)), HasSubstr("scaled by a GradScaler"));
  EXPECT_THAT(describe(policy("O3")), HasSubstr("works on the bf16 weights"));
}

TEST(Policy, O0IsBitForBitPlain) {
  const Model plain = small_resnet();
  const Model under = apply(small_resnet(), policy("O0")).model;
  EXPECT_TRUE(torch::equal(plain.forward(image_batch()), under.forward(image_batch())));
}

TEST(Policy, O1KeepsTheWeightsAndCastsTheProducts) {
  const Model model = apply(small_resnet(), policy("O1")).model;
  for (const auto& [name, dtype] : dtypes_of(model.named_parameters())) EXPECT_EQ(dtype, at::kFloat) << name;
  const at::Tensor output = model.forward(image_batch());
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(output, output.to(at::kBFloat16).to(at::kFloat)));  // it was computed in bf16
}

TEST(Policy, O2KeepsNormsInFp32) {
  const PreparedModel prepared = apply(small_resnet(), policy("O2"));
  const auto dtypes = dtypes_of(prepared.model.state_dict());
  EXPECT_EQ(dtypes.at("conv1.weight"), at::kBFloat16);
  EXPECT_EQ(dtypes.at("fc.bias"), at::kBFloat16);
  EXPECT_EQ(dtypes.at("bn1.weight"), at::kFloat);
  EXPECT_EQ(dtypes.at("bn1.running_var"), at::kFloat);
  EXPECT_EQ(dtypes.at("bn1.num_batches_tracked"), at::kLong);
  for (const auto& [name, master] : prepared.masters.state_dict()) {
    EXPECT_EQ(master.scalar_type(), at::kFloat) << name;
    EXPECT_EQ(name.find("bn"), std::string::npos) << name;
  }
  EXPECT_EQ(prepared.model.forward(image_batch()).scalar_type(), at::kFloat);
  // The masters are the weights from before they were rounded.
  const NamedTensors plain = small_resnet().named_parameters();
  const auto [low, master] = prepared.masters.pairs().front();
  EXPECT_TRUE(low.is_same(prepared.model.parameters().front()));
  EXPECT_TRUE(torch::equal(master, plain.front().second));
}

TEST(Policy, OtherNormsAreKnownByTheirClassName) {
  const Model model =
      Model::of(torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::LayerNorm(std::vector<int64_t>{8}),
                                      torch::nn::Linear(8, 4), torch::nn::GroupNorm(2, 4)));
  const PreparedModel prepared = apply(model, policy("O2"));
  const auto dtypes = dtypes_of(prepared.model.named_parameters());
  EXPECT_EQ(dtypes.at("0.weight"), at::kBFloat16);
  EXPECT_EQ(dtypes.at("1.weight"), at::kFloat);
  EXPECT_EQ(dtypes.at("3.bias"), at::kFloat);
  EXPECT_EQ(prepared.model.forward(torch::ones({2, 8})).scalar_type(), at::kFloat);
}

TEST(Policy, O3IsLowThroughout) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const PreparedModel prepared = apply(small_resnet(), policy("O3", dtype));
    for (const auto& [name, found] : dtypes_of(prepared.model.state_dict())) {
      EXPECT_TRUE(found == dtype || found == at::kLong) << name;
    }
    EXPECT_TRUE(prepared.masters.empty());
    EXPECT_EQ(prepared.model.forward(image_batch()).scalar_type(), at::kFloat);
  }
}

TEST(Policy, LowPrecisionTrainsLikeFp32) {
  const std::vector<double> exact = train(policy("O0"));
  ASSERT_LT(exact.back(), 0.5 * exact.front());
  for (const char* level : {"O1", "O2", "O3"}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const std::vector<double> low = train(policy(level, dtype));
      SCOPED_TRACE(level);
      EXPECT_NEAR(low.front(), exact.front(), 0.02 * exact.front());
      EXPECT_LT(low.back(), 0.55 * exact.front());
    }
  }
}

TEST(Policy, ParametersKeepTheirIdentity) {
  const Model model = small_resnet();
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
  auto [low, masters] = apply(model, policy("O2"));
  const at::Tensor held = optimizer.param_groups()[0].params()[0];
  EXPECT_EQ(held.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(held.is_same(low.parameters()[0]));
  masters.attach(optimizer);
  EXPECT_EQ(optimizer.param_groups()[0].params()[0].scalar_type(), at::kFloat);
}

TEST(Policy, BadInput) {
  EXPECT_THROW(policy("O4"), c10::ValueError);
  EXPECT_THROW(policy(""), c10::ValueError);
  EXPECT_THROW(policy("O1", at::kFloat), c10::ValueError);
  EXPECT_THROW(policy("O3", at::kDouble), c10::ValueError);
  EXPECT_THROW(apply(small_resnet(), {.master_weights = true}), c10::ValueError);
  EXPECT_THROW(apply(small_resnet(), {.dtype = at::kBFloat16}), c10::ValueError);
}

TEST(Advice, NamesModulesShapesAndTheNextMultiple) {
  torch::nn::Sequential net(torch::nn::Conv2d(3, 12, 3),
                            torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 16, 3).groups(16)),
                            torch::nn::Embedding(1001, 64), torch::nn::Linear(64, 10), torch::nn::BatchNorm1d(10));
  EXPECT_THAT(advise(Model::of(net), 30),
              ElementsAre("batch size: 30 is not a multiple of 8; pad it to 32",
                          "0.weight [12, 3, 3, 3] (Conv2d), dim 0: 12 is not a multiple of 8; pad it to 16",
                          "0.weight [12, 3, 3, 3] (Conv2d), dim 1: 3 is not a multiple of 8; pad it to 8",
                          "3.weight [10, 64] (Linear), dim 0: 10 is not a multiple of 8; pad it to 16"));
  EXPECT_TRUE(advise(Model::of(torch::nn::Linear(64, 32)), 32).empty());
  EXPECT_THROW(advise(Model::of(torch::nn::Linear(64, 32)), -1), c10::ValueError);
}

}  // namespace bellows::amp
