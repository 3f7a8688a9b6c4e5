#include "bellows/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/core/seed.h"
#include "bellows/optim/optimizers.h"
#include "bellows/train.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

/// The last state of every progress bar.
struct ProgressSink final : LogSink {
  void write(LogLevel, std::string_view) override {}
  void progress(const ProgressState& state) override {
    if (!state.finished) return;
    labels.emplace_back(state.label);
    done.push_back(state.done);
    total.push_back(state.total);
    detail = state.detail;
    unit = state.unit;
  }
  std::vector<std::string> labels;
  std::vector<int64_t> done, total;
  std::string detail, unit;
};

}  // namespace

TEST(Trainer, LearnsTheDigits) {
  Recipe recipe = digits_recipe();
  recipe.data = digits_folder();
  recipe.eval_data.clear();
  recipe.lr = 0.05;
  recipe.epochs = 12;
  recipe.optimizer_impl = "foreach";
  recipe.target_accuracy = 0.96;
  Trainer trainer(recipe);
  const FitResult result = trainer.fit();
  EXPECT_TRUE(result.reached_target);
  EXPECT_FALSE(result.stopped);
  ASSERT_FALSE(result.history.empty());
  EXPECT_GE(result.history.back().eval_accuracy, 0.96);
  EXPECT_LT(result.history.back().train_loss, result.history.front().train_loss);
  EXPECT_GT(result.time_to_target_s, 0);
  EXPECT_DOUBLE_EQ(result.time_to_target_s, result.train_seconds);
  EXPECT_EQ(result.steps, 45 * static_cast<int64_t>(result.history.size()));
  EXPECT_EQ(result.checkpoint, "");
}

TEST(Trainer, HistoryIsThatOfTheSteps) {
  std::vector<double> losses;
  std::vector<int64_t> epochs;
  Callbacks callbacks;
  callbacks.on_step = [&](const TrainLoop& loop) {
    losses.push_back(loop.last_loss().item<double>());
    EXPECT_TRUE(loop.job().model.parameters()[0].grad().defined());
  };
  callbacks.on_epoch = [&](const EpochRecord& record) { epochs.push_back(record.epoch); };
  Trainer trainer(digits_recipe(), callbacks);
  const FitResult result = trainer.fit();
  ASSERT_EQ(result.history.size(), 2u);
  EXPECT_EQ(epochs, (std::vector<int64_t>{0, 1}));
  ASSERT_EQ(losses.size(), 24u);
  double sum = 0;
  for (size_t i = 12; i < 24; ++i) sum += losses[i];
  EXPECT_DOUBLE_EQ(result.history[1].train_loss, sum / 12);
  EXPECT_EQ(result.history[1].steps, 24);
  EXPECT_GT(result.history[1].eval_accuracy, 0.2);
  EXPECT_GT(result.history[1].eval_seconds, 0);
  EXPECT_NEAR(result.train_seconds, result.history[0].train_seconds + result.history[1].train_seconds, 1e-9);
}

TEST(Trainer, FitsWhatTheCallerMade) {
  at::manual_seed(4);
  const Model model = dropout_net();
  optim::AdamW adamw(model.parameters(), {.lr = 0.01});
  Recipe recipe;
  recipe.epochs = 15;
  bellows::Trainer trainer(recipe);
  const LossFn loss = [&](const bellows::Batch& b) {
    return torch::nn::functional::cross_entropy(model->forward(b["image"]), b["label"]);
  };
  const FitResult result = trainer.fit(model, adamw, loss, blobs(256).shuffle(3), blobs(100, 1));
  EXPECT_GT(result.history.back().eval_accuracy, 0.85);
  EXPECT_EQ(result.steps, 15 * 16);
  const Evaluation evaluation = trainer.evaluate(model, blobs(100, 1));
  EXPECT_DOUBLE_EQ(evaluation.accuracy, result.history.back().eval_accuracy);
}

TEST(Trainer, AnyTorchOptimizerWorks) {
  const Model model = dropout_net();
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(0.01));
  Recipe recipe;
  recipe.epochs = 2;
  const FitResult result = Trainer(recipe).fit(model, adam, cross_entropy_loss(model), blobs(64));
  EXPECT_LT(result.history[1].train_loss, result.history[0].train_loss);
  EXPECT_EQ(result.history[1].eval_accuracy, 0);
}

TEST(Trainer, ShowsItsProgress) {
  const auto sink = std::make_shared<ProgressSink>();
  const auto before = set_log_sink(sink);
  const Model model = dropout_net();
  optim::SGD sgd(model.parameters(), {});
  Recipe recipe;
  recipe.epochs = 2;
  Trainer(recipe).fit(model, sgd, cross_entropy_loss(model), blobs(70));
  set_log_sink(before);
  EXPECT_EQ(sink->labels, (std::vector<std::string>{"epoch 1/2", "epoch 2/2"}));
  EXPECT_EQ(sink->done, (std::vector<int64_t>{70, 70}));
  EXPECT_EQ(sink->total, (std::vector<int64_t>{70, 70}));
  EXPECT_EQ(sink->unit, "samples");
  EXPECT_THAT(sink->detail, testing::StartsWith("loss 1."));
}

TEST(Trainer, ChecksTheWeightsOfTheRecipe) {
  const TemporaryFolder folder;
  Recipe recipe = digits_recipe();
  recipe.epochs = 1;
  recipe.run_folder = folder.path();
  const FitResult first = Trainer(recipe).fit();
  recipe.run_folder.clear();
  recipe.weights = first.checkpoint;
  const Job job = make_job(recipe);
  data::Loader loader = job.eval->loader();
  EXPECT_DOUBLE_EQ(evaluate(job.model, loader, recipe).accuracy, first.history[0].eval_accuracy);
}

}  // namespace bellows::train
