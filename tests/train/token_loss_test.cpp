#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/amp/policy.h"
#include "bellows/data/order/packing.h"
#include "bellows/models/head.h"
#include "bellows/models/mlp.h"
#include "bellows/tap/allocator.h"
#include "bellows/train/job.h"
#include "tests/models/small_models.h"

namespace bellows::train {

namespace {

constexpr int64_t words = 20'000, rows = 16, length = 48;

Model small_language_model(bool logits = true) {
  torch::manual_seed(3);
  models::GptOptions options = models::without_dropout(models::small_gpt());
  options.vocab_size = words;
  options.n_positions = length;
  options.logits = logits;
  return models::gpt(options);
}

data::Batch packed_batch() {
  at::Tensor segments = torch::ones({rows, length}, at::kLong);
  segments.slice(1, length / 2).fill_(2);
  segments.slice(1, length - 3).zero_();
  return data::Batch({{"tokens", torch::randint(1, words, {rows, length})}, {"segment_ids", segments}}, {}, {});
}

/// The model whose head nobody knows: as it is for a plugin's.
Model opaque(const Model& model) {
  auto module = std::make_shared<torch::nn::Module>();
  module->register_module("inner", model.module());
  return Model("opaque", module, [model](const at::Tensor& x) { return model.forward(x); });
}

struct Step {
  double loss = 0;
  int64_t peak_bytes = 0;  // over what was there before
  std::vector<at::Tensor> gradients;
};

Step step_of(const Model& model, const data::Batch& batch, double label_smoothing) {
  const LossFn loss_of = next_token_loss(model, label_smoothing);
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  tap::reset_cpu_allocation_peak();
  const StepOutput output = loss_of(batch);
  (output.loss / output.count).backward();
  Step step{.loss = (output.loss / output.count).item<double>(),
            .peak_bytes = tap::cpu_allocation_counters().peak_bytes - before};
  for (const at::Tensor& parameter : model.parameters()) {
    step.gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  return step;
}

}  // namespace

// Sums over words in another order: 1e-5 of the largest, as nn's losses promise in fp32.
TEST(NextTokenLoss, NeverHoldsAllScoresAndIsTheSame) {
  tap::install_cpu_allocator();
  const Model model = small_language_model();
  const data::Batch batch = packed_batch();
  constexpr int64_t scores = rows * length * words * 4;
  for (const double smoothing : {0.0, 0.1}) {
    const Step ours = step_of(model, batch, smoothing), plain = step_of(opaque(model), batch, smoothing);
    EXPECT_NEAR(ours.loss, plain.loss, 1e-5 * plain.loss);
    ASSERT_EQ(ours.gradients.size(), plain.gradients.size());
    for (size_t i = 0; i < ours.gradients.size(); ++i) {
      const double largest = plain.gradients[i].abs().max().item<double>();
      EXPECT_TRUE(torch::allclose(ours.gradients[i], plain.gradients[i], 0, 1e-5 * largest + 1e-12)) << i;
    }
    EXPECT_GT(plain.peak_bytes, 2 * scores) << "scores and their gradient";
    EXPECT_LT(ours.peak_bytes, scores * 3 / 4) << "32 MiB of them at a time, and the weight's gradient twice";
  }
}

TEST(NextTokenLoss, GoesThroughWhatWrapsTheModel) {
  const data::Batch batch = packed_batch();
  for (const char* level : {"O1", "O3"}) {
    amp::PreparedModel prepared = amp::apply(small_language_model(), amp::policy(level, at::kBFloat16));
    at::ScalarType hidden_type = at::kFloat;
    const at::Tensor ones = models::forward_with_head(
        prepared.model, batch["tokens"], [&](const at::Tensor& hidden, const at::Tensor&, auto&) {
          hidden_type = torch::linear(hidden, torch::ones({1, hidden.size(-1)}, hidden.options())).scalar_type();
          return torch::ones({2});
        });
    EXPECT_EQ(ones.numel(), 2) << "in place of scores";
    EXPECT_EQ(hidden_type, at::kBFloat16) << level << ": products are in bf16 there";
    const double ours = step_of(prepared.model, batch, 0).loss;
    EXPECT_NEAR(ours, step_of(opaque(prepared.model), batch, 0).loss, 1e-2 * ours) << "scores rounded to bf16";
  }
}

TEST(NextTokenLoss, OnlyOfModelsThatSayWhatTheirHeadIs) {
  const auto none = [](const at::Tensor&, const at::Tensor&, const at::Tensor&) -> at::Tensor {
    throw std::logic_error("nothing runs");
  };
  EXPECT_FALSE(models::forward_with_head(models::mlp(), torch::zeros({1, 1, 8, 8}), none).defined());
  EXPECT_FALSE(models::forward_with_head(small_language_model(false), packed_batch()["tokens"], none).defined());
}

}  // namespace bellows::train
