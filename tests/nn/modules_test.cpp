#include "bellows/nn/modules.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/core/model.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace bellows::nn {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// The state dict, output and gradients that PyTorch's module of that name has.
template <class Module>
void expect_module(Module module, const std::string& name) {
  const Golden golden("nn/modules.safetensors");
  module->to(at::kDouble);
  const Model model = Model::of(module);
  NamedTensors state;
  for (const auto& [parameter, tensor] : model.named_parameters()) {
    state.emplace_back(parameter, golden(name + ".state." + parameter));
  }
  load_state_dict(model, state);
  const at::Tensor x = golden(name + ".x").clone().requires_grad_();
  const at::Tensor y = module->forward(x);
  y.backward(golden(name + ".dy"));
  EXPECT_TRUE(at::allclose(y, golden(name + ".y"), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(x.grad(), golden(name + ".dx"), 1e-11, 1e-12));
  for (const auto& [parameter, tensor] : model.named_parameters()) {
    EXPECT_TRUE(at::allclose(tensor.grad(), golden(name + ".grad." + parameter), 1e-11, 1e-12)) << parameter;
  }
}

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  return module.named_parameters().keys();
}

/// As a user writes a block.
struct Block : torch::nn::Module {
  LayerNorm first{nullptr};
  RMSNorm second{nullptr};
  Block() {
    first = register_module("first", LayerNorm(8));
    second = register_module("second", RMSNorm(RMSNormOptions{.normalized_shape = {8}, .eps = 1e-6}));
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
};

}  // namespace

TEST(NormModules, LayerNormIsPyTorchs) {
  expect_module(LayerNorm(LayerNormOptions{.normalized_shape = {3, 5}}), "layer");
}

TEST(NormModules, RMSNormIsPyTorchs) {
  expect_module(RMSNorm(RMSNormOptions{.normalized_shape = {3, 5}}), "rms");
}

TEST(NormModules, StartAtOnesAndZeros) {
  LayerNorm layer(4);
  EXPECT_TRUE(torch::equal(layer->weight, torch::ones({4})));
  EXPECT_TRUE(torch::equal(layer->bias, torch::zeros({4})));
  EXPECT_TRUE(layer->weight.requires_grad());
  EXPECT_TRUE(torch::equal(RMSNorm(4)->weight, torch::ones({4})));
}

TEST(NormModules, ParametersCanBeLeftOut) {
  EXPECT_THAT(parameter_names(*LayerNorm(4)), ElementsAre("weight", "bias"));
  EXPECT_THAT(parameter_names(*LayerNorm(LayerNormOptions{.normalized_shape = {4}, .bias = false})),
              ElementsAre("weight"));
  LayerNorm plain(LayerNormOptions{.normalized_shape = {4}, .elementwise_affine = false});
  EXPECT_THAT(parameter_names(*plain), ElementsAre());
  RMSNorm rms(RMSNormOptions{.normalized_shape = {4}, .elementwise_affine = false});
  EXPECT_THAT(parameter_names(*rms), ElementsAre());
  const at::Tensor x = torch::randn({3, 4}).requires_grad_();
  EXPECT_TRUE(at::allclose(plain(x), at::layer_norm(x, {4}), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(rms(x), at::rms_norm(x, {4}), 1e-5, 1e-6));
}

TEST(NormModules, WorkInsideAModel) {
  at::manual_seed(5);
  auto block = std::make_shared<Block>();
  EXPECT_THAT(parameter_names(*block), ElementsAre("first.weight", "first.bias", "second.weight"));
  const at::Tensor x = torch::randn({2, 8}).requires_grad_();
  block->forward(x).sum().backward();
  for (const auto& p : block->parameters()) EXPECT_TRUE(p.grad().defined());
  const auto copy = std::dynamic_pointer_cast<LayerNormImpl>(block->first->clone());
  copy->weight.data().fill_(2);
  EXPECT_TRUE(torch::equal(block->first->weight, torch::ones({8})));
  EXPECT_EQ(copy->options.normalized_shape, std::vector<int64_t>{8});
  std::ostringstream text;
  text << *block->first << " " << *block->second;
  EXPECT_EQ(text.str(),
            "bellows::nn::LayerNorm([8], eps=1e-05, elementwise_affine=true, bias=true) "
            "bellows::nn::RMSNorm([8], eps=1e-06, elementwise_affine=true)");
}

TEST(NormModules, LowPrecisionModelKeepsItsDtype) {
  LayerNorm layer(16);
  layer->to(at::kBFloat16);
  const at::Tensor y = layer(torch::randn({3, 16}).to(at::kBFloat16));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(layer->weight.grad().scalar_type(), at::kBFloat16);
}

TEST(NormModules, RefuseBadOptions) {
  EXPECT_THAT(message_of([] { LayerNorm(LayerNormOptions{}); }), HasSubstr("LayerNorm: expected a normalized_shape"));
  EXPECT_THROW(LayerNorm(-3), c10::ValueError);
  EXPECT_THROW(RMSNorm(RMSNormOptions{.normalized_shape = {4}, .eps = 0}), c10::ValueError);
  EXPECT_THROW(LayerNorm(LayerNormOptions{.normalized_shape = {4}, .eps = std::nan("")}), c10::ValueError);
}

}  // namespace bellows::nn
