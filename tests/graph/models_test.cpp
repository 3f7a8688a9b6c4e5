#include "bellows/amp/autocast.h"
#include "bellows/models/resnet.h"
#include "bellows/models/unet.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/optim/optimizers.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "tests/graph/training.h"
#include "tests/models/small_models.h"

namespace bellows::graph::testing {
namespace {

TEST(TrainingStep, ResNet18) {
  expect_trained_alike([] {
    const Model model = models::resnet18({.num_classes = 10});
    const at::Tensor x = torch::randn({2, 3, 32, 32}), y = torch::randint(0, 10, {2});
    return training<SGD>(
        model.module(), [=](int call) { return nn::functional::cross_entropy(model.forward(x * (1 + 0.1 * call)), y); },
        SGDOptions(0.01).momentum(0.9));
  });
}

TEST(TrainingStep, BertPlainAndInAutocast) {
  for (const bool autocast : {false, true}) {
    expect_trained_alike([&] {
      const Model model = models::bert(models::wide_bert());
      const at::Tensor ids = torch::randint(1, 50, {4, 12}), y = torch::randint(0, 2, {4});
      return training<AdamW>(
          model.module(),
          [=](int) {
            const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, autocast);
            return nn::functional::cross_entropy(model.forward(ids).to(at::kFloat), y);
          },
          AdamWOptions(1e-3));
    });
  }
}

TEST(TrainingStep, RecomputedBlocksDrawTheSameNumbersTwice) {
  expect_trained_alike([] {
    auto net = mlp();
    const at::Tensor x = torch::randn({8, 16}), y = torch::randint(0, 10, {8});
    return training<AdamW>(
        net.ptr(),
        [=](int call) {
          const auto all = [net](const at::Tensor& input) mutable { return net->forward(input); };
          return nn::functional::cross_entropy(recompute::checkpoint(all, x * (1 + 0.1 * call)), y);
        },
        AdamWOptions(1e-2));
  });
}

/// A model, what it reads, and its loss.
struct Case {
  Model model;
  at::Tensor x;
  std::function<at::Tensor(const at::Tensor& output)> loss;
};

/// Ten forward passes, ten with backward, ten whole steps.
void expect_model_alike(const std::function<Case()>& make) {
  const auto gradients = [](const Case& one) { return state_of(*one.model.module()); };
  const Explanation forward = expect_same([&] {
    const Case one = make();
    one.model.eval();
    return Program{[=](int) -> Tensors {
      const c10::NoGradGuard no_grad;
      return {one.model.forward(one.x)};
    }};
  });
  EXPECT_EQ(forward.followed_calls, 9) << forward.to_text();
  const Explanation backward = expect_same([&] {
    const Case one = make();
    return Program{[=](int) -> Tensors {
                     const at::Tensor loss = one.loss(one.model.forward(one.x));
                     loss.backward();
                     return {loss};
                   },
                   [=] { return gradients(one); }};
  });
  EXPECT_GE(backward.followed_calls, 8) << backward.to_text();
  expect_trained_alike([&] {
    const Case one = make();
    return training<optim::AdamW>(
        one.model.module(), [=](int) { return one.loss(one.model.forward(one.x)); }, optim::AdamWOptions{.lr = 1e-3});
  });
}

TEST(ModelsInRegions, UNet) {
  expect_model_alike([] {
    const at::Tensor y = torch::randint(0, 3, {2, 16, 16});
    return Case{models::unet({.num_classes = 3, .channels = 4, .depth = 2}), torch::randn({2, 3, 16, 16}),
                [y](const at::Tensor& scores) { return nn::functional::cross_entropy(scores, y); }};
  });
}

TEST(ModelsInRegions, Gpt) {
  for (const bool fused : {false, true}) {
    expect_model_alike([&] {
      const auto model =
          models::gpt({.vocab_size = 40, .n_positions = 16, .n_embd = 32, .n_layer = 2, .n_head = 4, .fused = fused});
      const at::Tensor ids = torch::randint(0, 40, {3, 12}), next = ids.slice(1, 1).reshape({-1});
      return Case{model, ids, [next](const at::Tensor& scores) {
                    return bellows::nn::softmax_cross_entropy(scores.slice(1, 0, -1).reshape({-1, 40}), next);
                  }};
    });
  }
}

TEST(ModelsInRegions, EncoderDecoder) {
  for (const bool fused : {false, true}) {
    expect_model_alike([&] {
      models::EncoderDecoderOptions options = models::wide_encoder_decoder();
      options.fused = fused;
      const at::Tensor y = torch::randn({4, options.horizon, 1});
      return Case{models::encoder_decoder(options), torch::randn({4, 10, options.in_features}),
                  [y](const at::Tensor& forecast) { return (forecast - y).pow(2).mean(); }};
    });
  }
}

}  // namespace
}  // namespace bellows::graph::testing
