// Accumulated gradients against one large batch, in float64 to 1e-12: over ragged batches, padded tokens, every kind of
// optimizer step, with clipping.
#include <gtest/gtest.h>

#include "bellows/core/seed.h"
#include "bellows/optim/optimizers.h"
#include "bellows/train/step/train_loop.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

constexpr int64_t samples = 77, words = 7, vocabulary = 11;

/// Sequences of 1 to 7 tokens, padded with -100 where a label would be.
data::Dataset ragged_text() {
  at::manual_seed(5);
  const at::Tensor x = torch::randn({samples, words, 8}, at::kDouble);
  const at::Tensor labels = torch::randint(vocabulary, {samples, words});
  const at::Tensor lengths = torch::randint(1, words + 1, {samples, 1});
  const at::Tensor padded = labels.masked_fill(torch::arange(words).unsqueeze(0) >= lengths, -100);
  return data::Dataset(data::from_tensors({{"x", x}, {"tokens", padded}}));
}

data::Dataset ragged_points() {
  at::manual_seed(6);
  const at::Tensor x = torch::randn({samples, 8}, at::kDouble);
  return data::Dataset(data::from_tensors({{"image", x}, {"label", x.slice(1, 0, 3).argmax(1)}}));
}

Model double_net(int64_t outputs) {
  seed_everything(3);
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, outputs));
  net->to(at::kDouble);
  return Model::of(net, "double_net");
}

LossFn token_loss(const Model& model, bool as_sum) {
  return [model, as_sum](const data::Batch& batch) {
    const at::Tensor logits = model.forward(batch["x"]).flatten(0, 1), tokens = batch["tokens"].flatten();
    const at::Tensor count = tokens.ne(-100).sum();
    const auto reduction = as_sum ? at::Reduction::Sum : at::Reduction::Mean;
    const at::Tensor loss = at::cross_entropy_loss(logits, tokens, {}, reduction, -100);
    if (as_sum) return StepOutput::sum(loss, count);
    StepOutput output(loss);
    output.count = count;
    return output;
  };
}

struct Case {
  int64_t batch, accumulate;
  optim::Impl impl = optim::Impl::loop;
  double clip_norm = 0;
  int optimizers = 1;
};

/// Weights after one step with learning rate 1, and the loss that the loop reports.
struct StepResult {
  std::vector<at::Tensor> weights;
  double loss;
};

StepResult one_step(const Case& which, const data::Dataset& dataset, int64_t outputs,
                    const std::function<LossFn(const Model&)>& make_loss) {
  Recipe recipe;
  recipe.gradient_accumulation_steps = which.accumulate;
  recipe.max_grad_norm = which.clip_norm;
  const Model model = double_net(outputs);
  const optim::SGDOptions options{.lr = 1.0, .impl = which.impl};
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;
  if (which.optimizers == 1) {
    optimizers = {std::make_shared<optim::SGD>(model.parameters(), options)};
  } else {
    const auto all = model.parameters();
    optimizers = {std::make_shared<optim::SGD>(std::vector<at::Tensor>{all[0], all[1]}, options),
                  std::make_shared<optim::SGD>(std::vector<at::Tensor>{all[2], all[3]}, options)};
  }
  TrainLoop loop(Job{recipe, model, optimizers, make_loss(model), dataset.batch(which.batch), {}});
  loop.step();
  return {copies_of(model), loop.take_losses().at(0)};
}

void expect_near(const StepResult& a, const StepResult& b, const std::string& what) {
  EXPECT_NEAR(a.loss, b.loss, 1e-12) << what;
  for (size_t i = 0; i < a.weights.size(); ++i)
    EXPECT_LT((a.weights[i] - b.weights[i]).abs().max().item<double>(), 1e-12) << what << ", tensor " << i;
}

LossFn points_loss(const Model& model) {
  return cross_entropy_loss(model);
}

}  // namespace

TEST(Accumulate, RaggedBatchesGiveTheGradientOfOneBatch) {
  const StepResult whole = one_step({.batch = samples, .accumulate = 1}, ragged_points(), 3, points_loss);
  for (const int64_t accumulate : {2, 4, 8}) {  // 77 samples: the last batch is smaller
    const int64_t batch = (samples + accumulate - 1) / accumulate;
    for (const auto impl : {optim::Impl::loop, optim::Impl::foreach, optim::Impl::fused}) {
      const Case which{.batch = batch, .accumulate = accumulate, .impl = impl};
      expect_near(one_step(which, ragged_points(), 3, points_loss), whole, c10::str(accumulate, " batches"));
    }
  }
}

TEST(Accumulate, PaddedTokensCountOnceEach) {
  for (const bool as_sum : {false, true}) {
    const auto loss = [&](const Model& model) { return token_loss(model, as_sum); };
    const StepResult whole = one_step({.batch = samples, .accumulate = 1}, ragged_text(), vocabulary, loss);
    for (const int64_t accumulate : {2, 4, 8}) {
      const Case which{.batch = (samples + accumulate - 1) / accumulate, .accumulate = accumulate};
      expect_near(one_step(which, ragged_text(), vocabulary, loss), whole, c10::str(accumulate, as_sum ? " sums" : ""));
    }
  }
}

TEST(Accumulate, MeansOfUnequalBatchesAreNotSimplyAveraged) {
  const StepResult whole = one_step({.batch = samples, .accumulate = 1}, ragged_points(), 3, points_loss);
  const StepResult first = one_step({.batch = 70, .accumulate = 1}, ragged_points(), 3, points_loss);
  EXPECT_GT((whole.weights[0] - first.weights[0]).abs().max().item<double>(), 1e-6);
}

TEST(Accumulate, ClippingSeesTheMeanGradient) {
  for (const auto impl : {optim::Impl::loop, optim::Impl::fused}) {
    for (const int optimizers : {1, 2}) {
      const Case whole{.batch = samples, .accumulate = 1, .impl = impl, .clip_norm = 0.01, .optimizers = optimizers};
      Case parts = whole;
      parts.batch = 20;
      parts.accumulate = 4;
      expect_near(one_step(parts, ragged_points(), 3, points_loss), one_step(whole, ragged_points(), 3, points_loss),
                  c10::str(optimizers, " optimizers"));
    }
  }
}

TEST(Accumulate, ABatchWithoutAnyTokenAddsNothing) {
  const auto loss = [](const Model& model) { return token_loss(model, true); };
  at::manual_seed(5);
  const at::Tensor x = torch::randn({4, words, 8}, at::kDouble);
  at::Tensor tokens = torch::randint(vocabulary, {4, words});
  tokens.slice(0, 0, 2).fill_(-100);
  const data::Dataset with_empty(data::from_tensors({{"x", x}, {"tokens", tokens}}));
  const data::Dataset without(data::from_tensors({{"x", x.slice(0, 2)}, {"tokens", tokens.slice(0, 2)}}));
  expect_near(one_step({.batch = 2, .accumulate = 2}, with_empty, vocabulary, loss),
              one_step({.batch = 2, .accumulate = 1}, without, vocabulary, loss), "an empty batch first");
}

TEST(Accumulate, TheLastGroupOfAnEpochIsShort) {
  Recipe recipe;
  recipe.gradient_accumulation_steps = 4;
  const Model model = double_net(3);
  const auto sgd = std::make_shared<optim::SGD>(model.parameters(), optim::SGDOptions{.lr = 0.1});
  TrainLoop loop(Job{recipe, model, {sgd}, cross_entropy_loss(model), ragged_points().batch(8), {}});
  EXPECT_EQ(loop.steps_per_epoch(), 3);  // 10 batches: 4, 4, 2
  std::vector<int64_t> sizes;
  for (int i = 0; i < 4; ++i) {
    loop.step();
    sizes.push_back(loop.last_batch_size());
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{32, 32, 13, 32}));
  EXPECT_EQ(loop.epoch(), 1);
}

}  // namespace bellows::train
