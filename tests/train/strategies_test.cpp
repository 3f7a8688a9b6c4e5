// What one line of a recipe switches on: clipping, averages, smoothing, early stop, evaluation while training, bad
// values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bellows/checkpoint/folder.h"
#include "bellows/optim/optimizers.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Small {
  Recipe recipe;
  Model model = dropout_net();
  double lr = 0.1;
  LossFn loss = cross_entropy_loss(model);
  std::shared_ptr<optim::SGD> sgd() const {
    return std::make_shared<optim::SGD>(model.parameters(), optim::SGDOptions{.lr = lr});
  }
  Job job(int64_t n = 64) const { return {recipe, model, {sgd()}, loss, blobs(n), blobs(32, 1)}; }
};

/// A model that takes the logarithm of what a layer makes.
struct LogNetImpl : torch::nn::Module {
  LogNetImpl() : layer(register_module("layer", torch::nn::Linear(8, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::log(layer->forward(x)); }
  torch::nn::Linear layer;
};

/// The loss is good, its gradient is not: the square root of 0 has an infinite slope.
at::Tensor with_bad_gradient(const at::Tensor& logits) {
  return (logits * 0).sum().sqrt() + logits.mean();
}

data::Dataset blobs_with_nan(int64_t row) {
  at::manual_seed(8);
  at::Tensor x = torch::randn({64, 8});
  const at::Tensor labels = x.slice(1, 0, 3).argmax(1);
  x[row][2] = std::numeric_limits<float>::quiet_NaN();
  return data::Dataset(data::from_tensors({{"image", x}, {"label", labels}})).batch(16);
}

}  // namespace

TEST(Strategies, ClippingBoundsTheStep) {
  Small small;
  small.lr = 1;
  small.recipe.max_grad_norm = 1e-3;
  TrainLoop loop(small.job());
  const std::vector<at::Tensor> before = copies_of(small.model);
  loop.step();
  double squares = 0;
  const std::vector<at::Tensor> after = copies_of(small.model);
  for (size_t i = 0; i < after.size(); ++i) squares += (after[i] - before[i]).square().sum().item<double>();
  EXPECT_NEAR(std::sqrt(squares), 1e-3, 1e-6);
  EXPECT_GT(loop.last_grad_norm().item<double>(), 1e-3);
}

TEST(Strategies, ValuesAreClippedOneByOne) {
  Small small;
  small.lr = 1;
  small.recipe.max_grad_value = 1e-4;
  TrainLoop loop(small.job());
  const std::vector<at::Tensor> before = copies_of(small.model);
  loop.step();
  const std::vector<at::Tensor> after = copies_of(small.model);
  for (size_t i = 0; i < after.size(); ++i) EXPECT_LT((after[i] - before[i]).abs().max().item<double>(), 1.01e-4);
}

TEST(Strategies, TheAverageIsEvaluatedAndTheModelTrainsOn) {
  Small small;
  small.recipe.ema_decay = 0.9;
  TrainLoop loop(small.job());
  loop.run_steps(8);
  ASSERT_NE(loop.average(), nullptr);
  const std::vector<at::Tensor> own = copies_of(small.model);
  const double averaged = loop.evaluate().loss;
  expect_same_bits(copies_of(small.model), own);
  loop.average()->copy_to(small.model);
  data::Loader eval = blobs(32, 1).loader();
  EXPECT_DOUBLE_EQ(train::evaluate(small.model, eval, small.recipe).loss, averaged);
  EXPECT_FALSE(torch::equal(copies_of(small.model)[0], own[0]));
}

TEST(Strategies, SmoothedLabels) {
  const Model model = dropout_net();
  model.eval();
  data::Loader loader = blobs(16).loader();
  loader.start(0);
  const data::Batch batch = *loader.next();
  const double plain = cross_entropy_loss(model)(batch).loss.item<double>();
  const double smooth = cross_entropy_loss(model, 0.3)(batch).loss.item<double>();
  const at::Tensor uniform = -at::log_softmax(model.forward(batch["image"]), 1).mean();
  EXPECT_NEAR(smooth, 0.7 * plain + 0.3 * uniform.item<double>(), 1e-6);
}

TEST(Strategies, EvaluationWhileTraining) {
  Small small;
  small.recipe.epochs = 2;
  small.recipe.eval_steps = 3;  // 4 steps an epoch
  std::vector<int64_t> steps;
  Callbacks callbacks;
  callbacks.on_evaluation = [&](int64_t step, const Evaluation&) { steps.push_back(step); };
  Trainer(small.recipe, callbacks).fit(small.job());
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 4, 6, 8}));
}

TEST(Strategies, StopsEarlyWhenNothingGetsBetter) {
  Small small;
  small.lr = 0;  // nothing ever changes
  small.recipe.epochs = 20;
  small.recipe.early_stopping_patience = 3;
  const FitResult result = Trainer(small.recipe).fit(small.job());
  EXPECT_TRUE(result.stopped_early);
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(result.history.size(), 4U);
}

TEST(Strategies, PlateauLowersTheRate) {
  Small small;
  small.lr = 1e-12;  // nothing gets better
  small.recipe.epochs = 6;
  small.recipe.lr_schedule = "plateau";
  const Job job = small.job();
  Trainer(small.recipe).fit(job);
  EXPECT_NEAR(job.optimizers.front()->param_groups().front().options().get_lr(), 1e-13, 1e-18);
}

TEST(Strategies, TheBestCheckpointsStay) {
  const TemporaryFolder folder;
  Small small;
  small.recipe.epochs = 5;
  small.recipe.run_folder = folder.path();
  small.recipe.save_top_k = 2;
  Trainer(small.recipe).fit(small.job());
  const auto best = checkpoint::Folder(folder.path()).best();
  ASSERT_EQ(best.size(), 2U);
  EXPECT_GE(best[0].score, best[1].score);
  for (const auto& one : best) EXPECT_EQ(checkpoint::load(one.path).step, one.step);
}

TEST(Strategies, SeveralOptimizersStepAndResumeTogether) {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& where, int64_t epochs, bool resume) {
    Small small;
    at::manual_seed(4);
    small.model = dropout_net();
    small.recipe.epochs = epochs;
    small.recipe.run_folder = where;
    small.recipe.max_grad_norm = 1;
    const auto all = small.model.parameters();
    Job job = small.job();
    job.loss = cross_entropy_loss(small.model);
    job.optimizers = {std::make_shared<optim::SGD>(std::vector<at::Tensor>{all[0], all[1]},
                                                   optim::SGDOptions{.lr = 0.1, .momentum = 0.9}),
                      std::make_shared<optim::AdamW>(std::vector<at::Tensor>{all[2], all[3]}, optim::AdamWOptions{})};
    Trainer trainer(small.recipe);
    trainer.resume(resume);
    trainer.fit(job);
    return copies_of(small.model);
  };
  const auto straight = run(folder / "straight", 4, false);
  run(folder / "halves", 2, false);
  expect_same_bits(run(folder / "halves", 4, true), straight);
}

TEST(BadValues, ALossNamesItsOperatorAndSamples) {
  Small small;
  const auto net = std::make_shared<LogNetImpl>();
  small.model = Model::of(net, "log_net");
  small.loss = cross_entropy_loss(small.model);
  const std::string message = error_of([&] { TrainLoop(small.job()).run_steps(4); });
  EXPECT_THAT(message,
              AllOf(HasSubstr("step 1"), HasSubstr("samples 0, 1, 2"), HasSubstr("aten::log"), HasSubstr("forward")));
}

TEST(BadValues, AGradientNamesTheBackwardOperator) {
  Small small;
  const Model model = small.model;
  small.loss = [model](const data::Batch& batch) { return with_bad_gradient(model.forward(batch["image"])); };
  const std::vector<at::Tensor> before = copies_of(small.model);
  const std::string message = error_of([&] { TrainLoop(small.job()).run_steps(4); });
  EXPECT_THAT(message, AllOf(HasSubstr("gradient"), HasSubstr("backward"), HasSubstr("SqrtBackward")));
  expect_same_bits(copies_of(small.model), before);  // the step was not taken
}

TEST(BadValues, ASampleIsNamed) {
  Small small;
  Job job = small.job();
  job.train = blobs_with_nan(21);
  const std::string message = error_of([&] { TrainLoop(job).run_steps(4); });
  EXPECT_THAT(message, AllOf(HasSubstr("step 2"), HasSubstr("\"image\" already contains it, in the samples 21")));
}

TEST(BadValues, ABrokenStateDoesNotReplaceAGoodOne) {
  const TemporaryFolder folder;
  Small small;
  small.lr = 1e38;
  small.recipe.run_folder = folder.path();
  small.recipe.save_steps = 1;
  small.recipe.save_total_limit = 1;
  EXPECT_THAT(error_of([&] { Trainer(small.recipe).fit(small.job()); }), HasSubstr("1e+38"));
  for (const std::string& path : checkpoint::Folder(folder.path()).list()) {
    for (const auto& [name, tensor] : checkpoint::load(path).model)
      EXPECT_TRUE(torch::isfinite(tensor).all().item<bool>()) << path << " " << name;
  }
}

TEST(BadValues, Fp16CountsWhatItSkips) {
  Small small;
  small.recipe.on_nan = "skip";
  small.recipe.precision = "fp16";
  Job job = small.job();
  job.train = blobs_with_nan(21);
  TrainLoop loop(job);
  loop.run_steps(4);
  EXPECT_GE(loop.skipped_steps(), 1);
}

TEST(Strategies, AnEpochThatEndsInBadSamplesTakesNoneOfTheNext) {
  const TemporaryFolder folder;
  Small small;
  small.recipe.bad_samples = "skip";
  Job job = small.job();
  at::manual_seed(8);
  at::Tensor labels = torch::zeros({40}, at::kLong);
  labels.slice(0, 20).fill_(99);  // of 3 classes
  job.train = data::Dataset(data::from_tensors({{"image", torch::randn({40, 8})}, {"label", labels}}))
                  .num_classes(3)
                  .on_bad_sample(data::OnBadSample::skip)
                  .batch(1);
  const CapturedLog log;
  TrainLoop loop(job);
  int64_t steps = 0;
  while (loop.epoch() == 0) steps += loop.step() ? 1 : 0;
  EXPECT_EQ(steps, 20);
  EXPECT_EQ(loop.sample_count(), 20);
  EXPECT_EQ(loop.batch(), 0);
}

TEST(BadValues, StepsAreSkippedAndCounted) {
  for (const auto impl : {optim::Impl::loop, optim::Impl::fused}) {
    Small small;
    small.recipe.on_nan = "skip";
    const torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16), torch::nn::Linear(16, 3));
    small.model = Model::of(net, "bn_net");
    small.loss = cross_entropy_loss(small.model);
    Job job = small.job();
    job.train = blobs_with_nan(21);
    job.optimizers = {
        std::make_shared<optim::SGD>(small.model.parameters(), optim::SGDOptions{.lr = 0.1, .impl = impl})};
    TrainLoop loop(job);
    loop.step();
    const std::vector<at::Tensor> before = copies_of(small.model);  // running statistics, too
    loop.step();
    expect_same_bits(copies_of(small.model), before);
    loop.run_steps(2);
    EXPECT_EQ(loop.skipped_steps(), 1);
    EXPECT_EQ(loop.take_losses().size(), 3U);
    for (const at::Tensor& tensor : copies_of(small.model)) EXPECT_TRUE(torch::isfinite(tensor).all().item<bool>());
  }
}

}  // namespace bellows::train
