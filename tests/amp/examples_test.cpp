// The examples by which the documents introduce mixed precision.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "bellows/amp/autocast.h"
#include "bellows/amp/grad_scaler.h"
#include "bellows/amp/policy.h"
#include "tests/amp/golden.h"

namespace bellows::amp {

namespace {

/// Linear(1024, 512), batch 64, SGD with 1e-3: the losses of some steps.
std::vector<double> linear_example(at::ScalarType dtype, int64_t steps = 500, int64_t every = 25) {
  torch::nn::Linear net(1024, 512);
  models::set_formula_weights(Model::of(net));
  const at::Tensor x = 2 * golden::values("example/x", {64, 1024}), y = 2 * golden::values("example/y", {64, 512});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1e-3));
  GradScaler scaler({.enabled = dtype == at::kHalf});
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    at::Tensor loss;
    {
      const AutocastGuard guard(at::kCPU, dtype == at::kFloat ? at::kHalf : dtype, dtype != at::kFloat);
      loss = torch::mse_loss(net->forward(x), y);
    }
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    if (step % every == 0 || step == steps - 1) losses.push_back(loss.item<double>());
  }
  return losses;
}

/// A regression whose true gradients are of the order of 1e-9, in fp16: the loss before and after 300 steps.
std::pair<double, double> tiny_gradients(bool scaled) {
  const at::Tensor x = golden::values("tiny/x", {64, 32}), target = golden::values("tiny/w", {32, 8});
  const at::Tensor y = 1e-4 * x.mm(target);
  at::Tensor w = torch::zeros({32, 8}).requires_grad_();
  torch::optim::SGD optimizer(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(50).momentum(0.9));
  GradScaler scaler({.enabled = scaled});
  const auto loss_now = [&] { return torch::mse_loss(x.mm(w), y).item<double>(); };
  const double before = loss_now();
  for (int i = 0; i < 300; ++i) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const AutocastGuard guard(at::kCPU, at::kHalf);
      loss = 1e-2 * torch::mse_loss(x.mm(w), y);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
  }
  return {before, loss_now()};
}

/// Training whose first gradient overflows fp16 on the way back; returns whether the weight is still a number, and the
/// scale.
std::pair<bool, double> overflow(bool scaled) {
  at::Tensor w = torch::ones({16, 16}).requires_grad_();
  torch::optim::SGD optimizer(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(1e-7));
  GradScaler scaler({.enabled = scaled});
  for (int i = 0; i < 20; ++i) {
    optimizer.zero_grad();
    at::Tensor y;
    {
      const AutocastGuard guard(at::kCPU, at::kHalf);
      y = torch::ones({4, 16}).mm(w);
    }
    // A large loss: multiplied by 65536 its gradient leaves fp16's range; the plain one stays inside, except once.
    const double factor = i == 3 ? 1e6 : 100;
    scaler.scale((factor * y.to(at::kFloat)).sum()).backward();
    scaler.step(optimizer);
    scaler.update();
  }
  return {torch::isfinite(w).all().item<bool>(), scaler.get_scale()};
}

}  // namespace

TEST(Examples, AMillionIsInfiniteInFp16) {
  EXPECT_EQ(torch::tensor(1e6, at::kFloat).item<float>(), 1e6f);
  EXPECT_TRUE(std::isinf(torch::tensor(1e6, at::kHalf).item<float>()));
  EXPECT_EQ(torch::tensor(1e6, at::kBFloat16).item<float>(), 999424);  // bf16 has the range, not the digits
}

TEST(Examples, SmallGradientsUnderflowInFp16) {
  const auto half = [](double x) { return torch::tensor(x, at::kHalf).item<float>(); };
  // 1e-5 is below fp16's normal numbers (6.1e-5): what is left has lost digits. From 3e-8 down it is zero.
  EXPECT_NE(half(1e-5), 0);
  EXPECT_GT(std::abs(half(1e-5) - 1e-5) / 1e-5, 1e-3);
  EXPECT_EQ(half(1e-5 * 1e-5), 0);
  EXPECT_EQ(half(1e-8), 0);
  // Times the scale it is kept to fp16's full precision.
  EXPECT_LT(std::abs(half(1e-8 * 65536) / 65536 - 1e-8) / 1e-8, 1e-3);
}

TEST(Examples, TheMeanOfASumStaysInRangeBecauseLossesAreFp32) {
  const AutocastGuard guard(at::kCPU, at::kHalf);
  const at::Tensor a = torch::full({1000}, 200, at::kHalf), b = torch::zeros({1000}, at::kHalf);
  EXPECT_EQ(torch::mse_loss(a, b).item<float>(), 40000);  // the sum of squares is 4e7
  EXPECT_EQ(torch::mse_loss(a, b, at::Reduction::Sum).item<float>(), 4e7f);
}

TEST(Examples, LinearForFiveHundredStepsIsPythons) {
  const auto expected = golden::read("example.json");
  const std::map<std::string, std::pair<at::ScalarType, double>> runs = {
      {"fp32", {at::kFloat, 1e-5}}, {"bf16", {at::kBFloat16, 2e-4}}, {"fp16", {at::kHalf, 2e-5}}};
  for (const auto& [name, run] : runs) {
    const auto wanted = expected[name].get<std::vector<double>>();
    const std::vector<double> losses = linear_example(run.first);
    ASSERT_EQ(losses.size(), wanted.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      ASSERT_NEAR(losses[i], wanted[i], run.second * wanted[i]) << name << ", loss " << i;
    }
    EXPECT_NEAR(losses.back(), expected["fp32"].back().get<double>(), 1e-3);  // and no precision is lost by it
  }
}

TEST(Examples, Fp16StandsStillWithoutScalingAndLearnsWithIt) {
  const auto [before, without] = tiny_gradients(false);
  EXPECT_EQ(without, before);
  EXPECT_LT(tiny_gradients(true).second, 0.05 * before);
}

TEST(Examples, Fp16DivergesWithoutScalingAndBacksOffWithIt) {
  EXPECT_FALSE(overflow(false).first);
  const auto [finite, scale] = overflow(true);
  EXPECT_TRUE(finite);
  EXPECT_LT(scale, 65536);
  EXPECT_GT(scale, 0);
}

}  // namespace bellows::amp
