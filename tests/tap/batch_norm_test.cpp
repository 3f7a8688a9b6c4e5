#include "bellows/tap/batch_norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace bellows::tap {
namespace {

TEST(BatchNormTap, ReplacesTheLayerThatIsToldByItsTensor) {
  torch::nn::BatchNorm2d replaced(3), plain(3);
  const at::Tensor x = torch::randn({4, 3, 2, 2}), before = plain->forward(x);
  int calls = 0;
  replace_batch_norm(replaced->running_mean, [&](const BatchNormCall& call) {
    ++calls;
    EXPECT_TRUE(call.weight.is_same(replaced->weight));
    EXPECT_EQ(call.momentum, 0.1);
    return call.input * call.weight.view({1, 3, 1, 1}) * 2;
  });
  replaced->to(torch::kDouble);  // identity stays
  replaced->to(torch::kFloat);
  const at::Tensor y = replaced->forward(x);
  EXPECT_TRUE(torch::equal(y, x * 2));
  y.sum().backward();  // what the function did has a gradient
  EXPECT_TRUE(torch::allclose(replaced->weight.grad(), (x * 2).sum({0, 2, 3})));
  EXPECT_TRUE(torch::equal(plain->forward(x), before));
  EXPECT_EQ(calls, 1);
  replaced->eval();
  const at::Tensor evaluated = replaced->forward(x);
  replaced->train();
  replace_batch_norm(replaced->running_mean, nullptr);
  EXPECT_TRUE(torch::equal(replaced->forward(x), before));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(torch::allclose(evaluated, x / std::sqrt(1 + 1e-5)));
}

TEST(BatchNormTap, TheWeightTellsWhereThereIsNoRunningMean) {
  torch::nn::BatchNorm1d layer(torch::nn::BatchNormOptions(3).track_running_stats(false));
  replace_batch_norm(layer->weight, [](const BatchNormCall& call) { return call.input + 1; });
  EXPECT_TRUE(torch::equal(layer->forward(torch::zeros({2, 3})), torch::ones({2, 3})));
  EXPECT_THROW(replace_batch_norm({}, nullptr), c10::ValueError);
}

}  // namespace
}  // namespace bellows::tap
