// The optimizers on the GPU, against the loop in double on the CPU, and against libtorch's own kernels.
#include <gtest/gtest.h>

#include "bellows/amp/grad_scaler.h"
#include "bellows/optim/clip.h"
#include "bellows/optim/optimizers.h"
#include "tests/device/support.h"
#include "tests/optim/support.h"

namespace bellows::optim {

namespace {

using test::gpu;
using test::Tensors;

Tensors weights_of(uint64_t seed) {
  torch::manual_seed(seed);
  return {torch::randn({64, 33}), torch::randn({33}), torch::randn({8, 3, 3, 3}), torch::randn({70000})};
}

/// Five steps with gradients that do not depend on the weights.
Tensors stepped(const std::string& name, const nlohmann::json& json, const c10::Device& device, at::ScalarType dtype,
                Impl impl, bool master_weights = false) {
  const Tensors leaves = test::leaves_on(device, dtype, weights_of(1));
  const auto optimizer = make_optimizer(name, json, leaves, impl, master_weights);
  for (uint64_t step = 0; step < 5; ++step) {
    const Tensors gradients = weights_of(10 + step);
    for (size_t i = 0; i < leaves.size(); ++i) {
      leaves[i].mutable_grad() = gradients[i].to(device, dtype);
    }
    optimizer->step();
  }
  Tensors result;
  for (const at::Tensor& leaf : leaves) result.push_back(leaf.detach().to(at::kCPU, at::kDouble));
  return result;
}

struct Rule {
  const char* name;
  nlohmann::json options;
};

std::vector<Rule> rules() {
  return {{"SGD", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.01}}},
          {"SGD", {{"lr", 0.1}}},
          {"Adam", {{"lr", 0.01}, {"weight_decay", 0.1}}},
          {"AdamW", {{"lr", 0.01}, {"weight_decay", 0.1}, {"amsgrad", true}}},
          {"RMSprop", {{"lr", 0.01}, {"momentum", 0.5}, {"centered", true}}},
          {"Adagrad", {{"lr", 0.01}}},
          {"Lion", {{"lr", 0.01}, {"weight_decay", 0.1}}}};
}

}  // namespace

class OptimizerOnDevice : public testing::TestWithParam<size_t> {};

TEST_P(OptimizerOnDevice, FusedStepEqualsTheLoopInDouble) {
  const auto [name, json] = rules()[GetParam()];
  SCOPED_TRACE(name);
  const Tensors exact = stepped(name, json, at::kCPU, at::kDouble, Impl::loop);
  const Tensors start = weights_of(1);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Tensors ours = stepped(name, json, gpu, dtype, Impl::fused),
                  again = stepped(name, json, gpu, dtype, Impl::fused);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_LE(test::relative_error(ours[i], exact[i]), dtype == at::kDouble ? 1e-12 : 2e-5) << dtype << " " << i;
      EXPECT_TRUE(at::equal(ours[i], again[i])) << dtype << " " << i;
      EXPECT_GT(test::relative_error(ours[i], start[i].to(at::kDouble)), 1e-3) << "no step happened";
    }
  }
}

// The inputs are rounded to bf16, hence 2^-8 of the values.
TEST_P(OptimizerOnDevice, MasterWeightsFollowTheDoubles) {
  const auto [name, json] = rules()[GetParam()];
  SCOPED_TRACE(name);
  const Tensors exact = stepped(name, json, at::kCPU, at::kDouble, Impl::loop);
  const Tensors ours = stepped(name, json, gpu, at::kBFloat16, Impl::fused, /*master_weights=*/true);
  const Tensors on_cpu = stepped(name, json, at::kCPU, at::kBFloat16, Impl::fused, /*master_weights=*/true);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LE(test::relative_error(ours[i], exact[i]), 4e-2) << i;
    EXPECT_LE(test::relative_error(ours[i], on_cpu[i]), 1e-3) << i << ": differs from the CPU";
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, OptimizerOnDevice, testing::Range<size_t>(0, rules().size()));

namespace {

template <class Optimizer, class Options>
Tensors low_bit_stepped(const c10::Device& device, Options options) {
  const Tensors leaves = test::leaves_on(device, at::kBFloat16, weights_of(1));
  Optimizer optimizer(leaves, options);
  for (uint64_t step = 0; step < 5; ++step) {
    const Tensors gradients = weights_of(10 + step);
    for (size_t i = 0; i < leaves.size(); ++i) leaves[i].mutable_grad() = gradients[i].to(device, at::kBFloat16);
    optimizer.step();
  }
  Tensors result;
  for (const at::Tensor& leaf : leaves) result.push_back(leaf.detach().to(at::kCPU, at::kDouble));
  return result;
}

}  // namespace

// A value at a rounding boundary may get the next code, which changes single weights by a step of bf16.
TEST(OptimizersOnDevice, LowBitStateFollowsTheCpu) {
  for (const State state : {State::int8, State::int4}) {
    for (const bool stochastic : {false, true}) {
      SCOPED_TRACE(c10::str(static_cast<int>(state), stochastic ? " stochastic" : ""));
      AdamWOptions options;
      options.lr = 0.01, options.state_dtype = state, options.min_8bit_size = 1024;
      options.stochastic_rounding = stochastic;
      const Tensors ours = low_bit_stepped<AdamW>(gpu, options), again = low_bit_stepped<AdamW>(gpu, options);
      const Tensors on_cpu = low_bit_stepped<AdamW>(at::kCPU, options);
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_LE(test::relative_error(ours[i], on_cpu[i]), 1e-3) << i;
        EXPECT_TRUE(at::equal(ours[i], again[i])) << i;
      }
    }
  }
}

TEST(OptimizersOnDevice, LossScalerSkipsStepsWithInfiniteGradients) {
  const Tensors leaves = test::leaves_on(gpu, at::kFloat, weights_of(1));
  AdamW optimizer(leaves, AdamWOptions{.lr = 0.01});
  amp::GradScaler scaler({.init_scale = 1024});
  const Tensors before = {leaves[0].detach().clone(), leaves[3].detach().clone()};
  const auto step = [&](double factor) {
    optimizer.zero_grad();
    at::Tensor loss;
    for (const at::Tensor& leaf : leaves) loss = loss.defined() ? loss + (leaf * leaf).sum() : (leaf * leaf).sum();
    scaler.scale(loss * factor).backward();
    scaler.step(optimizer);
    scaler.update();
  };
  step(INFINITY);
  EXPECT_TRUE(at::equal(leaves[0], before[0]));
  EXPECT_TRUE(at::equal(leaves[3], before[1]));
  EXPECT_EQ(scaler.get_scale(), 512);
  step(1);
  EXPECT_FALSE(at::equal(leaves[0], before[0]));
  // The first step of AdamW moves each weight by the learning rate, whatever the scale of the gradient is.
  EXPECT_TRUE(at::allclose((leaves[3] - before[1] * (1 - 0.01 * 0.01)).abs(), at::full_like(before[1], 0.01), 0, 2e-5));
}

TEST(OptimizersOnDevice, GradientsAreClippedAsOnTheCpu) {
  const auto clipped = [](const c10::Device& device) {
    const Tensors leaves = test::leaves_on(device, at::kFloat, weights_of(1));
    const Tensors gradients = weights_of(2);
    for (size_t i = 0; i < leaves.size(); ++i) leaves[i].mutable_grad() = gradients[i].to(device);
    const at::Tensor norm = clip_grad_norm_(leaves, 1.0);
    Tensors result = {norm.cpu().to(at::kDouble)};
    for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad().cpu().to(at::kDouble));
    return result;
  };
  const Tensors ours = clipped(gpu), expected = clipped(at::kCPU);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_LE(test::relative_error(ours[i], expected[i]), 1e-6) << i;
}

}  // namespace bellows::optim
