// A training run of several ranks against the same run in one process: float64, ragged batches, every way to share the work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/nan_to_num.h>

#include <functional>

#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/core/seed.h"
#include "bellows/optim/optimizers.h"
#include "bellows/train/step/train_loop.h"
#include "tests/train/ranks_jobs.h"

namespace bellows::train {

namespace {

using parallel::testing::run_ranks;
using ::testing::HasSubstr;

struct Outcome {
  std::vector<at::Tensor> weights;
  std::vector<double> losses;
  double accuracy = 0;
  Evaluation evaluation;
  int64_t epoch = 0, samples = 0;
};

Outcome outcome_of(TrainLoop& loop, int64_t steps) {
  loop.run_steps(steps);
  Outcome outcome{
      .weights = {}, .losses = loop.take_losses(), .accuracy = loop.take_accuracy(), .evaluation = loop.evaluate()};
  outcome.epoch = loop.epoch();
  outcome.samples = loop.sample_count();
  outcome.weights = copies_of(loop.job().model);
  return outcome;
}

void expect_alike(const Outcome& ranks, const Outcome& alone) {
  ASSERT_EQ(ranks.losses.size(), alone.losses.size());
  for (size_t i = 0; i < alone.losses.size(); ++i) EXPECT_NEAR(ranks.losses[i], alone.losses[i], 1e-9) << "step " << i;
  for (size_t i = 0; i < alone.weights.size(); ++i)
    EXPECT_TRUE(at::allclose(ranks.weights[i], alone.weights[i], 1e-9, 1e-12)) << "tensor " << i;
  EXPECT_DOUBLE_EQ(ranks.accuracy, alone.accuracy);
  EXPECT_EQ(ranks.evaluation.samples, alone.evaluation.samples);
  EXPECT_NEAR(ranks.evaluation.loss, alone.evaluation.loss, 1e-9);
  EXPECT_DOUBLE_EQ(ranks.evaluation.accuracy, alone.evaluation.accuracy);
  EXPECT_EQ(ranks.epoch, alone.epoch);
  EXPECT_EQ(ranks.samples, alone.samples);
}

using Change = std::function<void(Job&)>;

void expect_ranks_train_alike(
    const Recipe& recipe, int ranks, const Change& change = [](Job&) {}) {
  Job job = ranks_job(recipe);
  change(job);
  TrainLoop alone(std::move(job));
  const Outcome expected = outcome_of(alone, 20);
  std::vector<Job> jobs = ranks_jobs(recipe, ranks);
  for (Job& one : jobs) change(one);
  std::vector<Outcome> outcomes(jobs.size());
  run_ranks(ranks, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    jobs[rank].ranks = group;
    TrainLoop loop(std::move(jobs[rank]));
    outcomes[rank] = outcome_of(loop, 20);
  });
  for (const Outcome& outcome : outcomes) expect_alike(outcome, expected);
}

/// Returns the result of rank 0. Params: stop_after – step at which rank 0 asks for a stop; -1: none
FitResult fit_on(const Recipe& recipe, int ranks, int64_t stop_after, bool resume) {
  return fit_on_ranks(recipe, ranks_jobs(recipe, ranks), stop_after, resume);
}

/// Six layers, of which four are frozen.
Job frozen_layers_job(const Recipe& recipe) {
  seed_everything(3);
  torch::nn::Sequential net(torch::nn::Linear(8, 100));
  for (int layer = 0; layer < 4; ++layer) net->push_back(torch::nn::Linear(100, 100));
  for (const at::Tensor& parameter : net->parameters()) parameter.requires_grad_(parameter.size(-1) == 8);
  net->push_back(torch::nn::Linear(100, 3));
  net->to(at::kDouble);
  Job job = ranks_job(recipe);
  job.model = Model::of(net, "net");
  job.optimizers = {std::make_shared<optim::AdamW>(job.model.parameters(), optim::AdamWOptions{.lr = recipe.lr})};
  job.loss = cross_entropy_loss(job.model);
  return job;
}

/// Bytes that a rank gathers in two steps of four batches, and the weights after two more steps.
struct GatheredInSteps {
  int64_t bytes = 0;
  std::vector<at::Tensor> weights = {};
};

GatheredInSteps train_with_frozen_layers(int64_t limit_mb) {
  Recipe recipe = ranks_recipe();
  recipe.data_parallel = "zero3";
  recipe.shard_units = "1,2,3,4";
  recipe.shard_frozen = true;
  recipe.gathered_frozen_mb = limit_mb;
  recipe.gradient_accumulation_steps = 4;
  std::vector<Job> jobs = jobs_for(2, recipe, frozen_layers_job);
  GatheredInSteps result;
  run_ranks(2, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    job.ranks = group;
    TrainLoop loop(std::move(job));
    loop.run_steps(2);
    const int64_t before = comm::traffic(group)["all_gather"].bytes;
    loop.run_steps(2);
    const int64_t bytes = comm::traffic(group)["all_gather"].bytes - before;
    loop.ranks().complete_parameters();
    if (group.rank() == 0) result = {bytes, copies_of(loop.job().model)};
  });
  return result;
}

}  // namespace

TEST(TrainRanks, GiveWhatOneProcessGives) {
  for (const char* how : {"ddp", "zero1", "zero2", "zero3"}) {
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(c10::str(how, " on ", ranks));
      Recipe recipe = ranks_recipe();
      recipe.data_parallel = how;
      expect_ranks_train_alike(recipe, ranks);
    }
  }
}

TEST(TrainRanks, UpdateWeightsInBackwardAsOneProcessDoes) {
  for (const char* how : {"ddp", "zero1", "zero2", "zero3"}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(c10::str(how, " on ", ranks));
      Recipe recipe = ranks_recipe();
      recipe.data_parallel = how;
      recipe.optimizer_in_backward = true;
      recipe.ema_decay = 0.9;
      recipe.lr_schedule = "cosine";
      expect_ranks_train_alike(recipe, ranks);
    }
  }
  for (const char* how : {"zero1", "zero3"}) {
    SCOPED_TRACE(how);
    Recipe recipe = ranks_recipe();
    recipe.data_parallel = how;
    recipe.mesh = "data: 2, shard: 2";
    recipe.optimizer_in_backward = true;
    expect_ranks_train_alike(recipe, 4);
  }
}

// Batches of which each rank has the same share: no loss is weighted.
TEST(TrainRanks, UpdatesInBackwardHaveTheSameBits) {
  for (const char* how : {"ddp", "zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(how);
    const auto weights_of = [&](bool in_backward) {
      Recipe recipe = ranks_recipe();
      recipe.data_parallel = how;
      recipe.optimizer_in_backward = in_backward;
      std::vector<Job> jobs = ranks_jobs(recipe, 2);
      std::vector<at::Tensor> weights;
      run_ranks(2, [&](const comm::Group& group) {
        const auto rank = static_cast<size_t>(group.rank());
        jobs[rank].ranks = group;
        TrainLoop loop(std::move(jobs[rank]));
        const Outcome outcome = outcome_of(loop, 7);
        if (rank == 0) weights = outcome.weights;
      });
      return weights;
    };
    const std::vector<at::Tensor> plain = weights_of(false), stepped = weights_of(true);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(stepped[i], plain[i])) << i;
  }
}

TEST(TrainRanks, ARunWithUpdatesInBackwardResumes) {
  for (const char* how : {"ddp", "zero1", "zero3"}) {
    SCOPED_TRACE(how);
    const TemporaryFolder folder;
    Recipe recipe = ranks_recipe();
    recipe.data_parallel = how;
    recipe.optimizer_in_backward = true;
    recipe.epochs = 2;
    const FitResult whole = fit_on(recipe, 2, -1, false);
    recipe.run_folder = folder.path();
    ASSERT_TRUE(fit_on(recipe, 2, 5, false).stopped);
    const FitResult last = fit_on(recipe, 2, -1, true);
    ASSERT_EQ(last.history.size(), whole.history.size());
    EXPECT_EQ(last.history.back().train_loss, whole.history.back().train_loss);
    EXPECT_EQ(last.history.back().eval_loss, whole.history.back().eval_loss);
  }
}

TEST(TrainRanks, SettingsThatUpdatesInBackwardDoNotSupportAreRefused) {
  const auto refused = [](const Change& change) {
    Recipe recipe = ranks_recipe();
    recipe.optimizer_in_backward = true;
    std::vector<Job> jobs = ranks_jobs(recipe, 2);
    for (Job& job : jobs) change(job);
    return error_of_jobs(std::move(jobs));
  };
  EXPECT_THAT(refused([](Job& job) { job.recipe.gradient_compression = "bf16"; }),
              HasSubstr("optimizer_in_backward = true with 2 ranks, but gradient_compression = bf16 compresses"));
  EXPECT_THAT(refused([](Job& job) { job.recipe.compile = "step"; }), HasSubstr("compile = step exchanges gradients"));
  EXPECT_THAT(refused([](Job& job) { job.recipe.mesh = "tensor: 2"; }), HasSubstr("mesh = tensor: 2 has an axis"));
  EXPECT_THAT(refused([](Job& job) { job.recipe.optimizer = "adafactor"; }),
              HasSubstr("optimizer = adafactor uses rows and columns"));
  EXPECT_THAT(refused([](Job& job) { job.recipe.optimizer = "larc"; }),
              HasSubstr("optimizer = larc uses norms of complete parameters"));
  EXPECT_THAT(refused([](Job& job) { job.recipe.batch_norm_freeze_step = 5; }),
              HasSubstr("batch_norm_freeze_step = 5 needs equal running statistics"));
}

// A group's gradients need no memory, and each rank holds the state of its share, as with zero2.
TEST(TrainRanks, ZeroOneWithUpdatesInBackwardFreesGradients) {
  Recipe recipe = ranks_recipe();
  recipe.data_parallel = "zero1";
  recipe.optimizer_in_backward = true;
  std::vector<Job> jobs = ranks_jobs(recipe, 2);
  run_ranks(2, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    job.ranks = group;
    TrainLoop loop(std::move(job));
    loop.run_steps(2);
    for (const at::Tensor& parameter : loop.job().model.parameters()) EXPECT_FALSE(parameter.grad().defined());
    int64_t state = 0;
    for (const comm::Shard& part : loop.ranks().parts_of(*loop.job().optimizers.front()))
      state += part.spec.sizes.size() == 2 ? part.local.numel() : 0;
    EXPECT_LT(state, 2 * 15 * (8 + 3)) << "both moments of the two weight matrices on one rank";
    EXPECT_GT(state, 0);
  });
}

TEST(TrainRanks, TheLimitOfGatheredFrozenParametersOfTheRecipe) {
  const GatheredInSteps kept = train_with_frozen_layers(64), gathered = train_with_frozen_layers(0),
                        automatic = train_with_frozen_layers(-1);
  constexpr int64_t slice = (100 * 100 + 100) * 8 / 2;  // of a frozen layer on a rank
  EXPECT_LT(kept.bytes, 2 * 6 * slice) << "two steps gather four frozen layers once, and small layers often";
  EXPECT_GT(gathered.bytes, 2 * 4 * 4 * slice) << "each of four batches gathers most of them in forward and backward";
  EXPECT_EQ(automatic.bytes, kept.bytes);
  expect_same_bits(gathered.weights, kept.weights);
}

TEST(TrainRanks, ShardUnitsOfTheRecipe) {
  Recipe recipe = ranks_recipe();
  recipe.data_parallel = "zero3";
  recipe.shard_units = "0,2";
  recipe.reshard_after_forward = false;
  expect_ranks_train_alike(recipe, 3);
  recipe.shard_units = "layer";
  EXPECT_THAT(error_of([&] { expect_ranks_train_alike(recipe, 2); }), HasSubstr("no module with parameters matches"));
  recipe.data_parallel = "ddp";
  EXPECT_THAT(error_of([&] { recipe.validate(); }), HasSubstr("shard_units = layer works only with"));
  recipe.shard_units = "";
  EXPECT_THAT(error_of([&] { recipe.validate(); }), HasSubstr("reshard_after_forward = false works only with"));
}

TEST(TrainRanks, AccumulateClipAndAverageAsOneProcessDoes) {
  for (const char* how : {"ddp", "zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(how);
    Recipe recipe = ranks_recipe();
    recipe.data_parallel = how;
    recipe.gradient_accumulation_steps = 3;
    recipe.max_grad_norm = 0.05;
    recipe.ema_decay = 0.9;
    recipe.on_nan = "skip";
    expect_ranks_train_alike(recipe, 2);
    recipe.sync_each_batch = false;
    if (recipe.data_parallel >= "zero2") {
      expect_ranks_train_alike(recipe, 2);
    } else {
      EXPECT_THAT(error_of([&] { recipe.validate(); }), HasSubstr("sync_each_batch = false works only with"));
    }
  }
}

TEST(TrainRanks, RanksWithoutSamplesTakePart) {
  Recipe recipe = ranks_recipe();
  recipe.batch_size = 3;  // of four ranks
  for (const char* how : {"ddp", "zero3"}) {
    recipe.data_parallel = how;
    expect_ranks_train_alike(recipe, 4);
  }
  recipe.data_parallel = "ddp";
  recipe.sync_batch_norm = true;
  std::vector<Job> jobs = ranks_jobs(recipe, 4);
  run_ranks(4, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    job.ranks = group;
    TrainLoop loop(std::move(job));
    const std::string error = error_of([&] { loop.run_steps(1); });
    if (group.rank() == 3) {
      EXPECT_THAT(
          error,
          HasSubstr("rank 3 of 4 has no sample in this step, but sync_batch_norm needs at least one sample per rank"));
    }
  });
}

TEST(TrainRanks, SamplesThatARankSkipsCountForNone) {
  for (const char* how : {"ddp", "zero2", "zero3"}) {
    SCOPED_TRACE(how);
    Recipe recipe = ranks_recipe();
    recipe.data_parallel = how;
    expect_ranks_train_alike(recipe, 2, [&](Job& job) {
      at::manual_seed(6);
      const at::Tensor x = torch::randn({points, 8}, at::kDouble), label = x.slice(1, 0, 3).argmax(1);
      label[5] = label[30] = 77;  // no class
      const data::Dataset data = data::Dataset(data::from_tensors({{"image", x}, {"label", label}}))
                                     .num_classes(3)
                                     .on_bad_sample(data::OnBadSample::skip)
                                     .batch(recipe.batch_size)
                                     .threads(0);
      job.train = data.shuffle(2);
      job.eval = data;
    });
  }
}

TEST(TrainRanks, MeansOverTokensAreWeighedByThem) {
  expect_ranks_train_alike(ranks_recipe(), 2, [](Job& job) {
    job.loss = [model = job.model](const data::Batch& batch) {
      const at::Tensor logits = model.forward(batch["image"]), counted = batch["label"].ne(0);
      const at::Tensor count = counted.sum();  // a share may have no token at all
      StepOutput output(at::nan_to_num(at::cross_entropy_loss(logits, batch["label"].masked_fill(~counted, -100))),
                        logits);
      output.count = count;
      return output;
    };
  });
}

TEST(TrainRanks, HalfGradientsAreNotDivided) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.precision = "fp16";
  recipe.amp_level = "O2";
  recipe.image_size = 8;
  recipe.optimizer_impl = "auto";
  recipe.batch_size = 100;  // of three ranks, and 60 in an epoch's last step
  recipe.lr = 0.01;
  recipe.num_workers = 0;
  TrainLoop alone(make_job(recipe));
  alone.run_steps(8);
  const std::vector<double> expected = alone.take_losses();
  std::vector<Job> jobs = jobs_for(3, recipe);
  run_ranks(3, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    job.ranks = group;
    TrainLoop loop(std::move(job));
    loop.run_steps(8);
    const std::vector<double> losses = loop.take_losses();
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 0.01) << "step " << i;
  });
}

TEST(TrainRanks, EndTogetherWhenOneIsAskedTo) {
  std::vector<Job> jobs = ranks_jobs(ranks_recipe(), 2);
  std::vector<int64_t> steps(2);
  run_ranks(2, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    jobs[rank].ranks = group;
    TrainLoop loop(std::move(jobs[rank]));
    while (!loop.stop()) loop.step(rank == 1 && loop.step_count() == 4);
    steps[rank] = loop.step_count();
  });
  EXPECT_EQ(steps, (std::vector<int64_t>{5, 5}));
}

TEST(TrainRanks, AllReportWhyARunCannotResume) {
  const TemporaryFolder folder;
  Recipe recipe = ranks_recipe();
  recipe.run_folder = folder.path();
  fit_on(recipe, 2, 3, false);
  recipe.lr = 0.02;
  std::vector<Job> jobs = ranks_jobs(recipe, 2);
  std::vector<std::string> errors(2);
  run_ranks(2, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    errors[rank] = error_of([&] { fit_rank(recipe, std::move(jobs[rank]), &group, -1, true); });
  });
  EXPECT_THAT(errors, testing::Each(HasSubstr("results would differ from the original run: recipe.lr: 0.01")));
}

TEST(TrainRanks, ARunGoesOnWithAnotherNumberOfRanks) {
  for (const char* how : {"ddp", "zero2", "zero3"}) {
    SCOPED_TRACE(how);
    const TemporaryFolder folder;
    Recipe recipe = ranks_recipe();
    recipe.data_parallel = how;
    recipe.epochs = 3;
    const FitResult whole = fit_on(recipe, 1, -1, false);
    recipe.run_folder = folder.path();
    const FitResult first = fit_on(recipe, 3, 11, false);
    EXPECT_TRUE(first.stopped);
    EXPECT_EQ(first.steps, 12) << "the stop is agreed upon in the step behind the wish";
    const FitResult second = fit_on(recipe, 2, -1, true), alone = fit_on(recipe, 1, -1, true);
    EXPECT_EQ(second.steps, whole.steps);
    ASSERT_EQ(second.history.size(), whole.history.size());
    for (size_t i = 0; i < whole.history.size(); ++i) {
      EXPECT_NEAR(second.history[i].train_loss, whole.history[i].train_loss, 1e-9);
      EXPECT_NEAR(second.history[i].eval_loss, whole.history[i].eval_loss, 1e-9);
      EXPECT_DOUBLE_EQ(second.history[i].train_accuracy, whole.history[i].train_accuracy);
    }
    EXPECT_EQ(alone.steps, whole.steps) << "one process reads what ranks wrote";
  }
}

// Three ranks add up in an order that depends on where a gradient lies: two would not notice.
TEST(TrainRanks, ThreeGoOnBitForBit) {
  for (const char* how : {"ddp", "zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(how);
    const TemporaryFolder whole, parts;
    Recipe recipe = ranks_recipe();
    recipe.data_parallel = how;
    recipe.epochs = 2;
    recipe.run_folder = whole.path();
    const FitResult expected = fit_on(recipe, 3, -1, false);
    recipe.run_folder = parts.path();
    ASSERT_TRUE(fit_on(recipe, 3, 5, false).stopped);
    const FitResult result = fit_on(recipe, 3, -1, true);
    const auto a = checkpoint::SavedCheckpoint(result.checkpoint).state().model,
               b = checkpoint::SavedCheckpoint(expected.checkpoint).state().model;
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first;
  }
}

TEST(TrainRanks, WriteOneTraceAndOneLog) {
  const TemporaryFolder folder;
  Recipe recipe = ranks_recipe();
  recipe.epochs = 1;
  recipe.trace_steps = "2-3";
  recipe.run_folder = folder.path();
  std::vector<Job> jobs = ranks_jobs(recipe, 2);
  run_ranks(2, [&](const comm::Group& group) {
    Trainer trainer(recipe);
    trainer.set_process_group(group);
    trainer.fit(std::move(jobs[static_cast<size_t>(group.rank())]));
  });
  const std::string trace = read_bytes(folder / "trace-2-3.json");
  EXPECT_THAT(trace, HasSubstr("\"name\":\"rank 0\""));
  EXPECT_THAT(trace, HasSubstr("\"name\":\"rank 1\""));
  const std::string log = read_bytes(folder / "log.csv");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << "a head, and a row for the epoch: " << log;
}

// The ranks compare the data's fingerprint, and the run writes it down: samples are read for it once.
TEST(TrainRanks, ReadTheirDataForOneFingerprint) {
  struct Counting final : data::Source {
    explicit Counting(data::SourcePtr inner) : source(std::move(inner)) {}
    using data::Source::read;
    void read(int64_t index, data::Sample& sample) const override { ++reads, source->read(index, sample); }
    int64_t size() const override { return source->size(); }
    std::string describe() const override { return source->describe(); }
    bool stored() const override { return true; }
    data::SourcePtr source;
    mutable std::atomic<int64_t> reads{0};
  };
  const TemporaryFolder folder;
  std::vector<int64_t> reads;
  for (const std::string& run_folder : {std::string(), folder.path()}) {
    Recipe recipe = ranks_recipe();
    recipe.epochs = 1;
    recipe.run_folder = run_folder;
    const auto counting = std::make_shared<Counting>(ranks_points().source());
    std::vector<Job> jobs = ranks_jobs(recipe, 2);
    for (Job& job : jobs) job.train = data::Dataset(counting).batch(recipe.batch_size).threads(0).shuffle(2);
    run_ranks(2, [&](const comm::Group& group) {
      Trainer trainer(recipe);
      trainer.set_process_group(group);
      trainer.fit(std::move(jobs[static_cast<size_t>(group.rank())]));
    });
    reads.push_back(counting->reads);
  }
  EXPECT_EQ(reads[0], reads[1]);
}

TEST(TrainRanks, WhatOnlyOneProcessCanDoIsRefused) {
  Recipe recipe = ranks_recipe();
  recipe.sample_stats = true;
  EXPECT_THAT(error_of_jobs(ranks_jobs(recipe, 2)), HasSubstr("sample_stats works only with one process"));
}

TEST(TrainRanks, OtherRecipesAndDataAreNamed) {
  const auto error_with = [](const Change& change) {
    std::vector<Job> jobs = ranks_jobs(ranks_recipe(), 2);
    change(jobs[1]);
    return error_of_jobs(std::move(jobs));
  };
  EXPECT_THAT(
      error_with([](Job& job) { job.recipe.early_stopping_patience = 3; }),
      HasSubstr(
          "is early_stopping_patience: 3 on rank 1, and early_stopping_patience: 0 on rank 0. Use the same recipe"));
  EXPECT_THAT(error_with([](Job& job) {
                job.recipe.data_parallel = "zero2";
                job.recipe.mesh = "data: 2, shard: 1";
              }),
              HasSubstr("is data_parallel: zero2 on rank 1, and data_parallel: ddp on rank 0"));
  Recipe of_mesh = ranks_recipe();
  of_mesh.data_parallel = "zero2";
  of_mesh.mesh = "shard: 2";
  std::vector<Job> jobs = ranks_jobs(of_mesh, 2);
  jobs[1].recipe.mesh = "data: 2";
  EXPECT_THAT(error_of_jobs(std::move(jobs)),
              HasSubstr("is mesh: {data: 2, shard: 1} on rank 1, and mesh: {data: 1, shard: 2} on rank 0"));
  EXPECT_THAT(error_with([](Job& job) { job.eval.reset(); }),
              HasSubstr("held-out data: none on rank 1, and held-out data: 77 samples, "));
  // As many, and others: what each rank takes of a batch would belong to two data sets.
  EXPECT_THAT(error_with([](Job& job) {
                const at::Tensor x = torch::zeros({points, 8}, at::kDouble);
                const auto others = data::from_tensors({{"image", x}, {"label", x.slice(1, 0, 3).argmax(1)}});
                job.train = data::Dataset(others).batch(job.recipe.batch_size).threads(0);
              }),
              HasSubstr("line 1 is training data: 77 samples, "));
  // Checkpoints are written together: a rank without a folder would leave the others waiting.
  EXPECT_THAT(error_with([](Job& job) { job.recipe.run_folder = "/anywhere"; }),
              HasSubstr("checkpoints: in a run_folder on rank 1, and checkpoints: none on rank 0"));
  EXPECT_EQ(error_with([](Job& job) { job.recipe.data = "/elsewhere"; }), "");
}

TEST(TrainRanks, CompressionThatWouldNotHappenIsRefused) {
  Recipe recipe;
  recipe.data_parallel = "zero2";
  recipe.gradient_compression = "int8";
  EXPECT_THAT(error_of([&] { recipe.validate(); }), HasSubstr("int8 works only with data_parallel ddp and zero1"));
}

TEST(TrainRanks, MeshesGiveWhatOneProcessGives) {
  for (const char* how : {"zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(how);
    Recipe recipe = ranks_recipe();
    recipe.data_parallel = how;
    recipe.mesh = "data: 2, shard: 2";
    recipe.max_grad_norm = 0.05;
    recipe.shard_state_over_all = recipe.data_parallel != "zero1";
    expect_ranks_train_alike(recipe, 4);
  }
  Recipe recipe = ranks_recipe();
  recipe.data_parallel = "zero2";
  recipe.mesh = "data: 3";
  recipe.gradient_accumulation_steps = 2;
  expect_ranks_train_alike(recipe, 3);
  EXPECT_THAT(error_of([&] { expect_ranks_train_alike(recipe, 2); }),
              HasSubstr("data 3 × shard 1 needs more than 2 ranks"));
}

TEST(TrainRanks, ARunWithAnAverageGoesOnWithAnotherMesh) {
  const TemporaryFolder folder;
  Recipe recipe = ranks_recipe();
  recipe.data_parallel = "zero3";
  recipe.ema_decay = 0.9;
  recipe.epochs = 3;
  const FitResult whole = fit_on(recipe, 1, -1, false);
  recipe.run_folder = folder.path();
  recipe.mesh = "{data: 2, shard: 2}";
  recipe.shard_state_over_all = true;
  ASSERT_TRUE(fit_on(recipe, 4, 5, false).stopped);
  recipe.mesh = "shard: 3";
  ASSERT_TRUE(fit_on(recipe, 3, 12, true).stopped);
  recipe.mesh = "";
  recipe.shard_state_over_all = false;
  const FitResult last = fit_on(recipe, 2, -1, true);
  ASSERT_EQ(last.history.size(), whole.history.size());
  for (size_t i = 0; i < whole.history.size(); ++i) {
    EXPECT_NEAR(last.history[i].train_loss, whole.history[i].train_loss, 1e-9);
    EXPECT_NEAR(last.history[i].eval_loss, whole.history[i].eval_loss, 1e-9);
  }
}

TEST(TrainRanks, MeshesAreReadAndChecked) {
  const Recipe recipe = Recipe::parse("data_parallel: zero3\nmesh: {shard: 4, data: 2}\n");
  EXPECT_THAT(recipe.to_yaml(), HasSubstr("mesh: {data: 2, shard: 4}\n"));
  EXPECT_EQ(Recipe::parse(recipe.to_yaml()).to_yaml(), recipe.to_yaml());
  const auto message = [](const std::string& text) { return error_of([&] { Recipe::parse(text); }); };
  EXPECT_THAT(message("mesh: {data: 2}"), HasSubstr("works only with data_parallel zero1, zero2 and zero3, or with an "
                                                    "axis pipeline, context or tensor of at least 2, got ddp"));
  EXPECT_THAT(message("data_parallel: zero1\nmesh: {shards: 2}"),
              HasSubstr("no axis is called \"shards\". The axes are data, shard, pipeline, context and tensor. Did you "
                        "mean \"shard\"?"));
  EXPECT_THAT(message("data_parallel: zero1\nmesh: {shard: 0}"), HasSubstr("expected axes with sizes above 0"));
  EXPECT_THAT(message("data_parallel: zero1\nmesh: \"shard: 2, shard: 2\""), HasSubstr("occurs twice"));
  EXPECT_THAT(message("data_parallel: zero1\nmesh: \"data: 4096, shard: 8192\""), HasSubstr("at most 16777216 ranks"));
  EXPECT_THAT(message("data_parallel: zero2\nshard_state_over_all: true"), HasSubstr("works only with a mesh"));
  EXPECT_THAT(message("data_parallel: zero2\nshard_frozen: true"), HasSubstr("works only with data_parallel zero3"));
  EXPECT_THAT(message("data_parallel: zero3\ngathered_frozen_mb: 100"),
              HasSubstr("gathered_frozen_mb = 100 works only with shard_frozen = true"));
  EXPECT_THAT(message("data_parallel: zero3\nshard_frozen: true\nreshard_after_forward: false\ngathered_frozen_mb: 0"),
              HasSubstr("gathered_frozen_mb = 0 needs reshard_after_forward = true"));
  EXPECT_THAT(message("gathered_frozen_mb: -2"), HasSubstr("expected an integer of -1 to 16777216"));
  EXPECT_EQ(message("data_parallel: zero3\nshard_frozen: true\ngathered_frozen_mb: 100"), "");
}

TEST(TrainRanks, TheBatchMayBeSetForEachRank) {
  Recipe recipe = ranks_recipe();
  recipe.batch_size_per_rank = 5;
  std::vector<Job> jobs = ranks_jobs(recipe, 2);  // with batches of 10
  run_ranks(2, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    job.ranks = group;
    TrainLoop(std::move(job)).run_steps(1);
  });
  EXPECT_THAT(
      error_of([&] { TrainLoop(ranks_job(recipe)); }),
      HasSubstr("batch_size_per_rank = 5 needs batches of 5 samples with 1 rank, but the data has batches of 10"));
  const TemporaryFolder folder;
  Recipe whole;
  whole.model = "mlp";
  whole.data = digits_folder() + "/train-000.tar";
  whole.image_size = 8;
  whole.epochs = 1;
  whole.batch_size_per_rank = 64;
  whole.run_folder = folder.path();
  Trainer(whole).fit();
  EXPECT_THAT(read_bytes(folder / "recipe.yaml"), HasSubstr("batch_size: 64\n"));
}

}  // namespace bellows::train
