// Replicas in one process (data_parallel: dp) against the same run with one model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "bellows/checkpoint/rng.h"
#include "bellows/core/seed.h"
#include "tests/parallel/ranks.h"
#include "tests/train/run_part.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using ::testing::HasSubstr;

using LossMaker = std::function<LossFn(const Model& model)>;

constexpr int64_t weights_of_net = 8 * 15 + 15 + 15 * 3 + 3;

Model smooth_net(at::ScalarType dtype) {
  torch::nn::Sequential net(torch::nn::Linear(8, 15), torch::nn::Tanh(), torch::nn::Linear(15, 3));
  net->to(dtype);
  return Model::of(net, "smooth_net");
}

/// 77 points: batches of 10, and 7 in the last step of an epoch. Each has a weight, too.
data::Dataset weighted_points(at::ScalarType dtype) {
  at::manual_seed(6);
  const at::Tensor x = torch::randn({77, 8}, at::kDouble), label = x.slice(1, 0, 3).argmax(1);
  const at::Tensor weight = torch::rand({77, 1}, at::kDouble);
  return data::Dataset(data::from_tensors({{"image", x.to(dtype)}, {"label", label}, {"weight", weight.to(dtype)}}));
}

LossFn plain_loss(const Model& model) {
  return cross_entropy_loss(model);
}

Recipe points_recipe(const std::vector<std::string>& settings = {}) {
  Recipe recipe;
  recipe.batch_size = 10;
  recipe.optimizer = "sgd";
  recipe.lr = 0.1;
  for (const std::string& setting : settings) recipe.set(setting);
  return recipe;
}

Recipe with_replicas(Recipe recipe, int64_t replicas) {
  recipe.data_parallel = "dp";
  recipe.replicas = replicas;
  return recipe;
}

Job points_job(const Recipe& recipe, at::ScalarType dtype = at::kDouble, const LossMaker& make_loss = plain_loss) {
  seed_everything(3);
  const Model model = smooth_net(dtype);
  const data::Dataset data = weighted_points(dtype).batch(recipe.batch_size).threads(0);
  Job job{recipe, model, {make_optimizer(recipe, model)}, make_loss(model), data.shuffle(2), data};
  job.make_replica = [dtype, make_loss] {
    const Model replica = smooth_net(dtype);
    return Replica{replica, make_loss(replica)};
  };
  return job;
}

struct PointsRun {
  std::vector<at::Tensor> weights;
  std::vector<double> losses;
  double accuracy = 0;
  Evaluation evaluation;
  int64_t samples = 0;
};

PointsRun points_run(const Recipe& recipe, at::ScalarType dtype = at::kDouble,
                     const LossMaker& make_loss = plain_loss) {
  TrainLoop loop(points_job(recipe, dtype, make_loss));
  EXPECT_EQ(loop.replicas().size(), std::max<int64_t>(recipe.replicas, 1));
  loop.run_steps(20);  // more than two epochs
  PointsRun run{.weights = {}, .losses = loop.take_losses(), .accuracy = loop.take_accuracy()};
  run.evaluation = loop.evaluate();
  run.samples = loop.sample_count();
  run.weights = copies_of(loop.job().model);
  return run;
}

void expect_losses_within(const std::vector<double>& got, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], tolerance * std::abs(expected[i])) << "step " << i;
}

void expect_run_within(const PointsRun& got, const PointsRun& expected, double tolerance) {
  expect_losses_within(got.losses, expected.losses, tolerance);
  ASSERT_EQ(got.weights.size(), expected.weights.size());
  for (size_t i = 0; i < got.weights.size(); ++i)
    EXPECT_TRUE(at::allclose(got.weights[i], expected.weights[i], tolerance, tolerance / 10)) << "tensor " << i;
  EXPECT_EQ(std::isnan(got.accuracy), std::isnan(expected.accuracy));
  EXPECT_TRUE(std::isnan(expected.accuracy) || got.accuracy == expected.accuracy);
  EXPECT_NEAR(got.evaluation.loss, expected.evaluation.loss, tolerance);
  EXPECT_DOUBLE_EQ(got.evaluation.accuracy, expected.evaluation.accuracy);
  EXPECT_EQ(got.samples, expected.samples);
}

Recipe digits_mlp(const std::vector<std::string>& settings = {}) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.image_size = 8;
  recipe.lr = 0.01;
  recipe.momentum = 0;
  for (const std::string& setting : settings) recipe.set(setting);
  return recipe;
}

std::vector<double> digits_losses(const Recipe& recipe, int64_t steps) {
  TrainLoop loop(make_job(recipe));
  loop.run_steps(steps);
  return loop.take_losses();
}

}  // namespace

TEST(DataParallelJob, TrainsLikeOneModel) {
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"optimizer=adamw", "lr=0.01"},
      {"gradient_accumulation_steps=4"},
      {"max_grad_norm=0.05"},
      {"max_grad_value=0.01"},
      {"gradient_accumulation_steps=3", "max_grad_norm=0.05", "optimizer_impl=loop"},
      {"ema_decay=0.9"},
      {"on_nan=skip"},
      {"batch_size=38"},  // the last batch has one sample
  };
  for (const auto& settings : variants) {
    const Recipe recipe = points_recipe(settings);
    const PointsRun expected = points_run(recipe);
    for (const int64_t replicas : {2, 3}) {
      SCOPED_TRACE(c10::str(replicas, " replicas, ", c10::Join(", ", settings)));
      expect_run_within(points_run(with_replicas(recipe, replicas)), expected, 1e-9);
    }
  }
}

TEST(DataParallelJob, TrainsLikeOneModelInFp32) {
  const PointsRun expected = points_run(points_recipe(), at::kFloat);
  for (const int64_t replicas : {2, 3})
    expect_run_within(points_run(with_replicas(points_recipe(), replicas), at::kFloat), expected, 1e-5);
}

TEST(DataParallelJob, OneReplicaIsTheModelItself) {
  const PointsRun one = points_run(with_replicas(points_recipe(), 1)), plain = points_run(points_recipe());
  EXPECT_EQ(one.losses, plain.losses);
  expect_same_bits(one.weights, plain.weights);
}

// Every field of the batch is divided. Parts without any counted item add nothing.
TEST(DataParallelJob, EveryKindOfLossIsWeighted) {
  const LossMaker by_field = [](const Model& model) {
    return [model](const data::Batch& batch) {
      EXPECT_EQ(batch["weight"].size(0), batch.size());
      const at::Tensor logits = model.forward(batch["image"]);
      const at::Tensor each = at::cross_entropy_loss(logits, batch["label"], {}, at::Reduction::None);
      return StepOutput((each * batch["weight"].squeeze(1)).mean(), logits);
    };
  };
  const LossMaker counted_mean = [](const Model& model) {
    return [model](const data::Batch& batch) {
      const at::Tensor logits = model.forward(batch["image"]), counted = batch["label"].ne(0);
      const at::Tensor labels = batch["label"].masked_fill(~counted, -100);
      StepOutput output(at::nan_to_num(at::cross_entropy_loss(logits, labels)), logits);
      output.count = counted.sum();
      return output;
    };
  };
  const LossMaker sum = [](const Model& model) {
    return [model](const data::Batch& batch) {
      const at::Tensor logits = model.forward(batch["image"]), counted = batch["label"].ne(0);
      const at::Tensor labels = batch["label"].masked_fill(~counted, -100);
      return StepOutput::sum(at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum), counted.sum());
    };
  };
  for (const LossMaker& make_loss : {by_field, counted_mean, sum}) {
    for (const char* accumulation : {"gradient_accumulation_steps=1", "gradient_accumulation_steps=3"}) {
      const Recipe recipe = points_recipe({accumulation});
      const PointsRun expected = points_run(recipe, at::kDouble, make_loss);
      expect_run_within(points_run(with_replicas(recipe, 3), at::kDouble, make_loss), expected, 1e-9);
    }
  }
}

TEST(DataParallelJob, KindsOfLossesMustNotBeMixed) {
  const LossMaker mixed = [](const Model& model) {
    return [model](const data::Batch& batch) {
      const at::Tensor loss = at::cross_entropy_loss(model.forward(batch["image"]), batch["label"]);
      return batch.size() == 4 ? StepOutput(loss) : StepOutput::sum(loss, at::scalar_tensor(1));
    };
  };
  TrainLoop loop(points_job(with_replicas(points_recipe(), 3), at::kDouble, mixed));  // parts of 4, 3 and 3 samples
  EXPECT_THAT(error_of([&] { loop.step(); }), HasSubstr("a mean over samples for 1 of 3 parts"));
}

TEST(DataParallelJob, SampleStatisticsAreThoseOfOneModel) {
  const auto stats = [](const Recipe& recipe) {
    TrainLoop loop(points_job(recipe));
    loop.run_steps(16);
    return loop.sample_stats()->state();
  };
  const Recipe recipe = points_recipe({"sample_stats=true"});
  const NamedTensors got = stats(with_replicas(recipe, 3)), expected = stats(recipe);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::allclose(got[i].second.to(at::kDouble), expected[i].second.to(at::kDouble), 1e-5, 1e-6, true))
        << got[i].first;
  }
}

// make_job() creates the replicas. Sums over ReLUs are rounded in another order, hence the wider tolerance.
TEST(DataParallelJob, TrainsARecipeLikeOneModel) {
  const std::vector<double> expected = digits_losses(digits_mlp(), 20);
  for (const int64_t replicas : {0, 2, 3})  // 0: two on the CPU
    expect_losses_within(digits_losses(with_replicas(digits_mlp(), replicas), 20), expected, 1e-4);
}

TEST(DataParallelJob, TrainsWithATeacherAndItsCache) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "digits_resnet", 12);
  const Recipe recipe = digits_mlp({"teacher=digits_resnet", "teacher_weights=" + weights});
  Recipe cached = recipe;
  cached.teacher_cache = folder / "outputs.safetensors";
  const std::vector<double> expected = digits_losses(recipe, 15);
  expect_losses_within(digits_losses(with_replicas(recipe, 3), 15), expected, 1e-4);
  expect_losses_within(digits_losses(with_replicas(cached, 3), 15), expected, 1e-4);
}

TEST(DataParallelJob, TrainsInLowPrecision) {
  const std::vector<std::vector<std::string>> precisions = {{"precision=bf16"},
                                                            {"precision=bf16", "amp_level=O2"},
                                                            {"precision=bf16", "gradient_accumulation_steps=2"},
                                                            {"precision=fp16"},
                                                            {"precision=fp16", "amp_level=O2"}};
  for (std::vector<std::string> settings : precisions) {
    SCOPED_TRACE(c10::Join(", ", settings));
    settings.emplace_back("optimizer_impl=auto");
    const Recipe recipe = digits_mlp(settings);
    expect_losses_within(digits_losses(with_replicas(recipe, 3), 8), digits_losses(recipe, 8), 2e-2);
  }
}

// With batch norm, and with activations that are rounded at random.
TEST(DataParallelJob, GivesTheSameBitsEachTime) {
  const TemporaryFolder folder;
  Recipe recipe = digits_recipe();
  recipe.lr = 0.01;
  recipe.activation_dtype = "int8";
  recipe.offload_folder = folder.path();
  recipe = with_replicas(recipe, 3);
  const auto weights = [&] {
    TrainLoop loop(make_job(recipe));
    loop.run_steps(4);
    return copies_of(loop.job().model);
  };
  expect_same_bits(weights(), weights());
}

TEST(DataParallelJob, CreatingReplicasDrawsNoRandomNumbers) {
  const Job job = make_job(with_replicas(digits_mlp(), 2));
  const NamedTensors before = checkpoint::rng_state();
  const TrainLoop loop(job);
  EXPECT_TRUE(checkpoint::rng_state().front().second.equal(before.front().second));
}

TEST(DataParallelJob, ResumesWithTheSameBits) {
  const TemporaryFolder one, two;
  const auto recipe_in = [](const TemporaryFolder& folder) {
    return with_replicas(
        digits_mlp({"run_folder=" + folder.path(), "max_grad_norm=0.5", "ema_decay=0.9", "precision=bf16"}), 3);
  };
  const RunTrace whole = run_part(recipe_in(one), false, 0);
  RunTrace parts = run_part(recipe_in(two), false, 7);
  EXPECT_TRUE(parts.result.stopped);
  seed_everything(999);
  Recipe other = recipe_in(two);
  other.replicas = 2;
  EXPECT_THAT(error_of([&] { run_part(other, true, 0); }), HasSubstr("recipe.replicas"));
  const RunTrace rest = run_part(recipe_in(two), true, 0);
  parts.losses.insert(parts.losses.end(), rest.losses.begin(), rest.losses.end());
  EXPECT_EQ(parts.losses, whole.losses);
  expect_same_bits(rest.weights, whole.weights);
}

TEST(DataParallelJob, ResumesWithTheAutomaticNumberOfReplicas) {
  const TemporaryFolder folder;
  const Recipe recipe = with_replicas(digits_mlp({"run_folder=" + folder.path()}), 0);
  EXPECT_TRUE(run_part(recipe, false, 7).result.stopped);
  EXPECT_FALSE(run_part(recipe, true, 0).result.stopped);
}

TEST(DataParallelJob, CountsTheBytesThatItExchanges) {
  TrainLoop loop(points_job(with_replicas(points_recipe(), 3)));
  loop.run_steps(10);  // each batch has at least three samples
  EXPECT_EQ(loop.replicas().exchanged().gradients, 10 * (3 - 1) * weights_of_net * 8);
  EXPECT_EQ(loop.replicas().exchanged().weights, 0);
  EXPECT_EQ(TrainLoop(points_job(points_recipe())).replicas().exchanged().gradients, 0);
  EXPECT_EQ(loop.replicas().describe(), "dp: 3 replicas on cpu, cpu, cpu");
}

TEST(DataParallelJob, ABadSampleIsNamed) {
  at::manual_seed(6);
  at::Tensor x = torch::randn({77, 8}, at::kDouble);
  x[21][3] = std::numeric_limits<double>::quiet_NaN();
  Job job = points_job(with_replicas(points_recipe(), 3));
  job.train = data::Dataset(data::from_tensors({{"image", x}, {"label", torch::zeros({77}, at::kLong)}})).batch(10);
  TrainLoop loop(job);
  EXPECT_THAT(error_of([&] { loop.run_steps(8); }), HasSubstr("in the samples 21"));
}

TEST(DataParallelJob, SettingsThatNeedOneModelAreRefused) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"compile=step", "a compiled function records one thread"},
      {"compile=forward", "a compiled function records one thread"},
      {"optimizer_in_backward=true", "data_parallel = dp adds the gradients of the replicas after backward"},
      {"gradient_accumulation_dtype=fp32", "accumulates only the gradients of the first replica"},
      {"recompute=blocks", "recompute = blocks restores random generators"},
      {"sync_batch_norm=true", "synchronizes ranks and not replicas"},
      {"batch_norm_freeze_step=3", "batch_norm_freeze_step = 3 freezes only the first replica"},
      {"quantize=int8", "quantize = int8 observes"},
      {"reproducible_ranks=2", "reproducible_ranks = 2 divides batches among processes"},
      {"gradient_compression=int8", "works only with data_parallel ddp and zero1"}};
  for (const auto& [setting, words] : refused) {
    Recipe recipe = with_replicas(Recipe{}, 2);
    EXPECT_NO_THROW(recipe.validate());
    recipe.set(setting);
    EXPECT_THAT(error_of([&] { recipe.validate(); }), HasSubstr(words)) << setting;
  }
  Recipe recipe;
  recipe.replicas = 2;
  EXPECT_THAT(error_of([&] { recipe.validate(); }),
              HasSubstr("replicas = 2 works only with data_parallel dp, got ddp"));
  EXPECT_THAT(recompute_obstacle(with_replicas(Recipe{}, 2)), HasSubstr("share random generators"));
  EXPECT_THAT(optimizer_in_backward_conflict(with_replicas(Recipe{}, 2)), HasSubstr("data_parallel = dp"));
}

TEST(DataParallelJob, JobsWithoutReplicasAreRefused) {
  const Recipe recipe = with_replicas(points_recipe(), 2);
  Job job = points_job(recipe);
  job.make_replica = nullptr;
  EXPECT_THAT(error_of([&] { TrainLoop loop(job); }), HasSubstr("Set Job::make_replica"));
  job.make_replica = [] {
    const Model other = Model::of(torch::nn::Linear(8, 3), "other");
    return Replica{other, cross_entropy_loss(other)};
  };
  EXPECT_THAT(error_of([&] { TrainLoop loop(job); }), HasSubstr("expected replica 1 to have the model's 4 parameters"));

  std::vector<Job> jobs = {points_job(recipe), points_job(recipe)};
  EXPECT_THAT(error_of([&] {
                parallel::testing::run_ranks(2, [&](const comm::Group& group) {
                  Job& own = jobs[static_cast<size_t>(group.rank())];
                  own.ranks = group;
                  TrainLoop loop(std::move(own));
                });
              }),
              HasSubstr("data_parallel = dp trains replicas in one process, got 2 ranks"));
}

}  // namespace bellows::train
