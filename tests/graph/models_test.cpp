#include "bellows/amp/autocast.h"
#include "bellows/models/bert.h"
#include "bellows/models/resnet.h"
#include "bellows/recompute/checkpoint.h"
#include "tests/graph/training.h"

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

models::BertOptions small_bert() {
  return {.vocab_size = 50,
          .hidden_size = 32,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .intermediate_size = 64,
          .max_position_embeddings = 16};
}

TEST(TrainingStep, BertPlainAndInAutocast) {
  for (const bool autocast : {false, true}) {
    expect_trained_alike([&] {
      const Model model = models::bert(small_bert());
      const at::Tensor ids = torch::randint(1, 50, {4, 12}), y = torch::randint(0, 2, {4});
      return training<AdamW>(
          model.module(),
          [=](int) {
            const amp::autocast guard(at::kCPU, at::kBFloat16, autocast);
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

}  // namespace
}  // namespace bellows::graph::testing
