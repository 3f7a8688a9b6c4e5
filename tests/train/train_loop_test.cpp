#include "bellows/train/step/train_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "bellows/core/seed.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/state.h"
#include "bellows/train/data/data_assembly.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

struct Trajectory {
  std::vector<float> losses;
  std::vector<at::Tensor> weights;
};

constexpr int trajectory_steps = 20;

/// What one writes by hand over libtorch, with the same data and weights.
Trajectory by_hand(const Recipe& recipe) {
  seed_everything(static_cast<uint64_t>(recipe.seed));
  data::Loader loader = open_train_data(recipe).loader();
  const Model model = models::registry().at(recipe.model).make(10, 1);
  torch::optim::SGD sgd(
      model.parameters(),
      torch::optim::SGDOptions(recipe.lr).momentum(recipe.momentum).weight_decay(recipe.weight_decay));
  Trajectory result;
  for (int64_t epoch = 0; result.losses.size() < trajectory_steps; ++epoch) {
    loader.start(epoch);
    while (auto batch = loader.next()) {
      sgd.zero_grad();
      const at::Tensor loss = torch::nn::functional::cross_entropy(model.forward((*batch)["image"]), (*batch)["label"]);
      loss.backward();
      sgd.step();
      result.losses.push_back(loss.item<float>());
      if (result.losses.size() == trajectory_steps) break;
    }
  }
  result.weights = copies_of(model);
  return result;
}

Trajectory by_loop(const Recipe& recipe) {
  TrainLoop loop(make_job(recipe));
  Trajectory result;
  for (int i = 0; i < trajectory_steps; ++i) {
    loop.step();
    result.losses.push_back(loop.last_loss().item<float>());
  }
  result.weights = copies_of(loop.job().model);
  return result;
}

}  // namespace

TEST(TrainLoop, WithAllSwitchesOffIsThePlainLoopBitForBit) {
  const Recipe recipe = digits_recipe();
  const Trajectory plain = by_hand(recipe), ours = by_loop(recipe);
  EXPECT_EQ(ours.losses, plain.losses);
  expect_same_bits(ours.weights, plain.weights);
  EXPECT_LT(ours.losses.back(), ours.losses.front());
}

TEST(TrainLoop, ExactSwitchesChangeNoBit) {
  const Trajectory plain = by_loop(digits_recipe());
  Recipe recipe = digits_recipe();
  recipe.optimizer_impl = "foreach";
  recipe.num_workers = 2;
  recipe.image_cache_mb = 8;
  recipe.allocator_reuse = true;
  recipe.fast_random = true;
  const Trajectory ours = by_loop(recipe);
  EXPECT_EQ(ours.losses, plain.losses);
  expect_same_bits(ours.weights, plain.weights);
}

TEST(TrainLoop, InexactSwitchesStayNear) {
  const Trajectory plain = by_loop(digits_recipe());
  Recipe channels_last = digits_recipe(), bf16 = digits_recipe();
  channels_last.channels_last = true;
  bf16.precision = "bf16";
  const Trajectory a = by_loop(channels_last), b = by_loop(bf16);
  for (int i = 0; i < trajectory_steps; ++i)
    EXPECT_NEAR(a.losses[i], plain.losses[i], 0.02) << "channels-last, step " << i;
  EXPECT_NEAR(b.losses[0], plain.losses[0], 0.02);
  EXPECT_NE(b.losses, plain.losses) << "bf16 was not used";
  EXPECT_LT(b.losses.back(), 0.5 * b.losses.front());
  for (const at::Tensor& weight : b.weights) EXPECT_NE(weight.scalar_type(), at::kBFloat16);
}

TEST(TrainLoop, ChannelsLastReachesWeightsAndImages) {
  Recipe recipe = digits_recipe();
  recipe.channels_last = true;
  Job job = make_job(recipe);
  const LossFn loss = job.loss;
  bool images_are = true;
  job.loss = [&](const data::Batch& batch) {
    images_are = images_are && batch["image"].is_contiguous(at::MemoryFormat::ChannelsLast);
    return loss(batch);
  };
  TrainLoop loop(std::move(job));
  loop.run_steps(2);
  EXPECT_TRUE(images_are);
  int convolutions = 0;
  for (const at::Tensor& p : loop.job().model.parameters()) {
    if (p.dim() == 4 && p.size(1) > 1 && p.size(2) > 1) {
      EXPECT_TRUE(p.is_contiguous(at::MemoryFormat::ChannelsLast));
      ++convolutions;
    }
  }
  EXPECT_GT(convolutions, 2);
}

TEST(TrainLoop, CountsStepsSamplesAndEpochs) {
  TrainLoop loop(make_job(digits_recipe()));
  EXPECT_EQ(loop.steps_per_epoch(), 12);  // 360 samples by 32
  loop.run_steps(11);
  EXPECT_EQ(loop.epoch(), 0);
  EXPECT_EQ(loop.batch(), 11);
  loop.step();
  EXPECT_EQ(loop.last_batch_size(), 360 - 11 * 32);
  EXPECT_EQ(loop.sample_count(), 360);
  EXPECT_EQ(loop.epoch(), 1);
  EXPECT_EQ(loop.batch(), 0);
  loop.run_steps(13);
  EXPECT_EQ(loop.step_count(), 25);
  EXPECT_EQ(loop.epoch(), 2);
  EXPECT_EQ(loop.batch(), 1);
  EXPECT_EQ(loop.take_losses().size(), 25u);
  EXPECT_TRUE(loop.take_losses().empty());
}

TEST(TrainLoop, TwoLoopsTakeTurnsWithoutDisturbingEachOther) {
  const Trajectory alone = by_loop(digits_recipe());
  Recipe other = digits_recipe();
  other.seed = 77;
  TrainLoop a(make_job(digits_recipe())), b(make_job(other));
  std::vector<float> losses;
  for (int i = 0; i < trajectory_steps; ++i) {
    a.step();
    losses.push_back(a.last_loss().item<float>());
    b.run_steps(i % 3);
  }
  EXPECT_EQ(losses, alone.losses);
}

TEST(TrainLoop, EvaluationDisturbsNothing) {
  const Trajectory plain = by_loop(digits_recipe());
  TrainLoop loop(make_job(digits_recipe()));
  std::vector<float> losses;
  for (int i = 0; i < trajectory_steps; ++i) {
    if (i % 7 == 3) loop.evaluate();
    EXPECT_TRUE(loop.job().model.training());
    loop.step();
    losses.push_back(loop.last_loss().item<float>());
  }
  EXPECT_EQ(losses, plain.losses);
}

TEST(TrainLoop, EvaluationEqualsTheDefinition) {
  TrainLoop loop(make_job(digits_recipe()));
  loop.run_steps(15);
  const Evaluation evaluation = loop.evaluate();
  data::Loader loader = loop.job().eval->loader();
  loop.job().model.eval();
  const c10::NoGradGuard no_grad;
  double loss = 0, correct = 0;
  for (const data::Batch& batch : loader.epoch(0)) {
    const at::Tensor logits = loop.job().model.forward(batch["image"]);
    loss += torch::nn::functional::cross_entropy(
                logits, batch["label"], torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
                .item<double>();
    correct += (logits.argmax(1) == batch["label"]).sum().item<double>();
  }
  EXPECT_EQ(evaluation.samples, 359);
  EXPECT_DOUBLE_EQ(evaluation.accuracy, correct / 359);
  EXPECT_NEAR(evaluation.loss, loss / 359, 1e-6);
  EXPECT_GT(evaluation.accuracy, 0.3);
}

TEST(TrainLoop, WarmupScalesEachGroupsOwnRate) {
  Recipe recipe;
  recipe.warmup_epochs = 0.5;
  const Model model = dropout_net();
  const auto parameters = model.parameters();
  optim::LibtorchOptimizer::ParamGroups groups;
  groups.emplace_back(std::vector<at::Tensor>{parameters[0]}, std::make_unique<torch::optim::SGDOptions>(0.4));
  groups.emplace_back(std::vector<at::Tensor>{parameters[2]}, std::make_unique<torch::optim::SGDOptions>(0.04));
  auto sgd = std::make_shared<optim::SGD>(groups, optim::SGDOptions{});
  TrainLoop loop({recipe, model, {sgd}, cross_entropy_loss(model), blobs(128), {}});  // 8 steps an epoch: 4 of warm-up
  for (const double factor : {0.25, 0.5, 0.75, 1.0, 1.0}) {
    loop.step();
    EXPECT_DOUBLE_EQ(sgd->param_groups()[0].options().get_lr(), 0.4 * factor);
    EXPECT_DOUBLE_EQ(sgd->param_groups()[1].options().get_lr(), 0.04 * factor);
  }
}

TEST(TrainLoop, ALossThatIsNotFiniteNamesItsStep) {
  const Model model = dropout_net();
  auto sgd = std::make_shared<optim::SGD>(model.parameters(), optim::SGDOptions{});
  int64_t step = 0;
  const LossFn loss = [&](const data::Batch& batch) {
    const at::Tensor value = cross_entropy_loss(model)(batch).loss;
    return ++step == 5 ? value * std::numeric_limits<double>::quiet_NaN() : value;
  };
  TrainLoop loop({Recipe{}, model, {sgd}, loss, blobs(160), {}});
  loop.run_steps(3);
  EXPECT_EQ(loop.take_losses().size(), 3u);
  EXPECT_THAT(error_of([&] { loop.run_steps(4); }),
              testing::AllOf(testing::HasSubstr("NaN at step 5"), testing::HasSubstr("learning rate"),
                             testing::HasSubstr("not deterministic")));
}

}  // namespace bellows::train
