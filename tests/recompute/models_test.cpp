#include <gtest/gtest.h>

#include "bellows/amp/autocast.h"
#include "bellows/models/blocks.h"
#include "bellows/models/resnet.h"
#include "bellows/models/unet.h"
#include "bellows/tap/allocator.h"
#include "tests/models/small_models.h"
#include "tests/recompute/support.h"

namespace bellows::recompute::testing {

namespace {

at::Tensor checkpointed_twice(const Layer& block, const at::Tensor& x) {
  return checkpoint([block](const at::Tensor& y) { return checkpointed(block, y); }, x);
}

struct Way {
  std::string name;
  Call call;
};

std::vector<Way> exact_ways() {
  const auto with = [](const CheckpointOptions& options) {
    return [options](const Layer& block, const at::Tensor& x) { return checkpoint(options, block, x); };
  };
  return {{"checkpoint", checkpointed},
          {"nested", checkpointed_twice},
          {"products kept", with({.policy = save_products})},
          {"budget", with({.budget = 0.5})}};
}

/// Losses, gradients and buffers of training steps in every way, without and with autocast, are those of the plain call.
void expect_the_same(const std::function<Model()>& make, const at::Tensor& input, int steps = 2) {
  for (const bool autocast : {false, true}) {
    const auto run = [&](const Call& call) {
      torch::manual_seed(2);
      const Model model = make();
      EXPECT_GT(models::run_blocks_by(model, call), 1);
      const auto loss = [&] {
        const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, autocast);
        return model.forward(input).to(at::kFloat).pow(2).mean();
      };
      return trained(*model.module(), loss, steps);
    };
    const auto plain = run(nullptr);
    for (const Way& way : exact_ways())
      EXPECT_EQ(first_difference(plain, run(way.call)), -1) << way.name << ", autocast " << autocast;
  }
}

}  // namespace

TEST(CheckpointOfModels, ResNet18IsTheSameBitForBit) {
  torch::manual_seed(1);
  expect_the_same([] { return models::resnet18({.num_classes = 10}); }, torch::randn({2, 3, 48, 48}), 1);
}

TEST(CheckpointOfModels, UNetIsTheSameBitForBit) {
  torch::manual_seed(1);
  expect_the_same([] { return models::unet({.channels = 8, .depth = 2}); }, torch::randn({2, 3, 32, 32}));
}

TEST(CheckpointOfModels, BertIsTheSameBitForBit) {
  torch::manual_seed(1);
  expect_the_same([] { return models::bert(models::wide_bert()); }, torch::randint(1, 50, {4, 12}));
  models::BertOptions fused = models::wide_bert();
  fused.fused = true;
  expect_the_same([&] { return models::bert(fused); }, torch::randint(1, 50, {4, 12}));
}

TEST(CheckpointOfModels, BertHoldsTheInputsOfItsLayers) {
  tap::install_cpu_allocator();
  torch::manual_seed(1);
  models::BertOptions options = models::wide_bert();
  options.num_hidden_layers = 8;
  const at::Tensor ids = torch::randint(1, 50, {32, 16});
  const Model model = models::bert(options);
  const auto held = [&](const Call& call, bool int8) {
    models::run_blocks_by(model, call);
    const int64_t before = tap::cpu_allocation_counters().current_bytes;
    std::optional<CompressGuard> guard;
    if (int8) guard.emplace(CompressOptions{.min_size = 256});
    const at::Tensor loss = model.forward(ids).pow(2).mean();
    guard.reset();
    const int64_t result = tap::cpu_allocation_counters().current_bytes - before;
    loss.backward();
    return static_cast<double>(result);
  };
  held(nullptr, false);
  const double plain = held(nullptr, false);
  EXPECT_LT(held(checkpointed, false), 0.3 * plain);
  EXPECT_LT(held(nullptr, true), 0.4 * plain);
  EXPECT_LT(held(checkpointed, true), 0.1 * plain);
}

}  // namespace bellows::recompute::testing
