#include <gmock/gmock.h>

#include "bellows/amp/grad_scaler.h"
#include "bellows/models/blocks.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "tests/parallel/pipeline/pipeline_support.h"

// 20 steps on the ranks of a pipeline are those of one process without micro-batches, in fp64 to 1e-9.
namespace bellows::parallel::testing::stages {
namespace {

constexpr double pipeline_tolerance = 1e-9;

void expect_ranks_like(const Outcome& alone, const Task& task, const StagedTraining& run,
                       const PipelineSchedule& schedule, double tolerance = pipeline_tolerance) {
  SCOPED_TRACE(task.name + ", " + schedule.name + " on " + std::to_string(schedule.ranks.size()) + " ranks");
  EXPECT_NE(alone.losses.back(), alone.losses.front()) << "nothing was trained";
  std::mutex reports;
  run_ranks(static_cast<int>(schedule.ranks.size()), [&](const comm::Group& group) {
    const Outcome got = train_on_rank(task, run, schedule, group);
    const std::lock_guard<std::mutex> lock(reports);
    expect_like(got, alone, tolerance);
  });
}

void expect_like_alone(const Task& task, const StagedTraining& run, const PipelineSchedule& schedule) {
  expect_ranks_like(train_alone(task, run), task, run, schedule);
}

std::vector<PipelineSchedule> schedules_on(int ranks) {
  std::vector<PipelineSchedule> all = {gpipe(ranks, 3), one_forward_one_backward(ranks, 4), zero_bubble_h1(ranks, 5)};
  if (ranks == 2) all.push_back(interleaved(2, 4, 2));
  return all;
}

void expect_schedules_match_one_process(const Task& task, const StagedBatches& batches = {}) {
  const StagedTraining run{.accumulate = 2, .max_norm = 0.5, .batches = batches};
  const Outcome alone = train_alone(task, run);
  for (const int ranks : {2, 4}) {
    for (const PipelineSchedule& schedule : schedules_on(ranks)) expect_ranks_like(alone, task, run, schedule);
  }
}

TEST(PipelineTraining, SchedulesMatchOneProcess) {
  for (const Task& task : {tensor::gpt_task(), tensor::bert_task()}) expect_schedules_match_one_process(task);
}

/// Series of up to 6 steps. Some of them are shorter, and padded with NaN.
at::Tensor series_of(int64_t number) {
  const at::Tensor series = tensor::drawn({batch_samples, 6, 3}, 50 + static_cast<uint64_t>(number));
  for (int64_t sample = 0; sample < number % batch_samples; ++sample)
    series[sample].slice(0, 6 - sample % 4).fill_(NAN);
  return series;
}

at::Tensor future_of(int64_t number) {
  return tensor::drawn({batch_samples, 2, 2}, 90 + static_cast<uint64_t>(number));
}

at::Tensor squared_error(const at::Tensor& output, const std::vector<at::Tensor>& targets) {
  return at::mse_loss(output, targets[0]);
}

// The parts of the decoder also pass on the output of the encoder.
TEST(PipelineTraining, EncoderDecoderMatchesOneProcess) {
  expect_schedules_match_one_process(
      tensor::series_task(), {.inputs = series_of, .targets = future_of, .loss = squared_error, .weight = nullptr});
}

TEST(PipelineTraining, InSinglePrecision) {
  const StagedTraining run{.accumulate = 2, .max_norm = 0.5, .dtype = at::kFloat};
  for (const Task& task : {tensor::gpt_task(), tensor::bert_task()}) {
    const Outcome alone = train_alone(task, run);
    for (const PipelineSchedule& schedule : schedules_on(2)) expect_ranks_like(alone, task, run, schedule, 1e-4);
  }
}

TEST(PipelineTraining, LossesInHalfPrecision) {
  const StagedTraining run{.dtype = at::kBFloat16, .one_batch = true};
  for (const Task& task : {tensor::gpt_task(), tensor::bert_task()}) {
    const Outcome alone = train_alone(task, run);
    for (const PipelineSchedule& schedule : schedules_on(2)) {
      SCOPED_TRACE(task.name + ", " + schedule.name);
      tensor::expect_same_descent(alone,
                                  [&](const comm::Group& group) { return train_on_rank(task, run, schedule, group); });
    }
  }
}

TEST(PipelineTraining, StagesByHandAndOneRankMatchOneProcess) {
  expect_like_alone(tensor::distilbert_task(), {.first_parts = {0, 3}}, one_forward_one_backward(2, 2));
  expect_like_alone(tensor::gpt_task(), {.max_norm = 0.5, .first_parts = {0, 1}}, zero_bubble_h1(2, 3));
  expect_like_alone(tensor::gpt_task(), {}, one_forward_one_backward(1, 3));
}

/// Stages 0 and 2 are on rank 0, so the table is one that no builder makes.
TEST(PipelineTraining, TablesOfUsersMatchOneProcess) {
  const PipelineSchedule schedule = schedule_from_text(
      "schedule own\nmicro_batches 2\nstage_ranks 0 1 0\n"
      "rank 0: F0.1 F0.0 F2.0 I2.0 F2.1 W2.0 B2.1 B0.0 B0.1\nrank 1: F1.0 F1.1 B1.0 I1.1 W1.1\n");
  expect_like_alone(tensor::gpt_task(), {.steps = 5, .accumulate = 2, .max_norm = 0.5}, schedule);
}

TEST(PipelineTraining, ActivationCheckpointingMatchesOneProcess) {
  StagedTraining run{.steps = 5, .divide_backward = false};
  run.prepare = [](const Model& model) {
    model.eval();  // no seeds: the ranks of this test share the default generator (see random_test.cpp)
    models::run_blocks_by(
        model, [](const models::Block& block, const at::Tensor& x) { return recompute::checkpoint(block, x); });
  };
  expect_like_alone(tensor::gpt_task(), run, zero_bubble_h1(2, 3));
  run.divide_backward = true;
  expect_like_alone(tensor::bert_task(), run, zero_bubble_h1(2, 3));
}

TEST(PipelineTraining, ListsOfModelsMatchOneProcess) {
  const auto make = [] {
    std::vector<Model> models;
    for (uint64_t i = 0; i < 4; ++i) {
      const torch::nn::Linear linear(torch::nn::LinearOptions(6, 6));
      models.push_back(tensor::with_weights(Model::of(linear)));
    }
    return models;
  };
  const at::Tensor x = tensor::drawn({4, 6}, 1), y = tensor::drawn({4, 6}, 2);
  const Model alone = parts_of(make()).model;
  const at::Tensor expected = squared_error(alone.forward(x), {y});
  expected.backward();
  run_ranks(2, [&](const comm::Group& group) {
    Pipeline stages = pipeline(parts_of(make()), group, {.schedule = one_forward_one_backward(2, 2)});
    EXPECT_NEAR(stages.step({x}, {y}, squared_error), expected.item<double>(), pipeline_tolerance);
    EXPECT_EQ(stages.parameters().size(), 4u);
    const size_t first = group.rank() == 0 ? 0 : 4;
    for (size_t i = 0; i < 4; ++i)
      EXPECT_TRUE(at::allclose(stages.parameters()[i].grad(), alone.parameters()[first + i].grad(), 1e-9, 1e-12));
    const at::Tensor output = stages.forward({x});
    EXPECT_EQ(output.defined(), group.rank() == 1);
    if (group.rank() == 0) return;
    EXPECT_TRUE(at::allclose(output, alone.forward(x), 1e-12, 1e-12));
    EXPECT_FALSE(output.requires_grad());
  });
}

TEST(PipelineTraining, FrozenStagesSendNoGradients) {
  const Task task = tensor::bert_task();
  const auto freeze = [](const Model& model) {
    for (const auto& [name, parameter] : model.named_parameters())
      at::Tensor(parameter).requires_grad_(name.find("layer.1") != name.npos);
  };
  const Model alone = tensor::make_on_rank(task, {});
  freeze(alone);
  alone.train();
  mean_token_loss(alone.forward(ids_of(0)), {targets_of(0)}).backward();
  run_ranks(4, [&](const comm::Group& group) {
    Pipeline stages = make_pipeline(task, {.prepare = freeze}, one_forward_one_backward(4, 2), group);
    stages.step({ids_of(0)}, {targets_of(0)}, mean_token_loss, {.weight = token_count});
    const auto parameters = stages.model().named_parameters();
    const auto expected = alone.named_parameters();
    size_t compared = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].second.grad().defined()) continue;
      ++compared;
      EXPECT_TRUE(at::allclose(parameters[i].second.grad(), expected[i].second.grad(), 1e-9, 1e-12))
          << parameters[i].first;
    }
    EXPECT_EQ(compared, group.rank() == 2 ? 16u : 0u);  // only layer 1 is trained
  });
}

/// The first micro-batch has no tokens that count. Its loss and its gradients would be 0 / 0.
TEST(PipelineTraining, MicroBatchesWithoutWeight) {
  const Task task = tensor::gpt_task();
  const at::Tensor targets = targets_of(0);
  targets.slice(0, 0, 3).fill_(-100);
  const PipelineLoss mean = [](const at::Tensor& logits, const std::vector<at::Tensor>& parts) {
    const at::Tensor labels = parts[0].flatten(), counts = labels.ne(-100).to(logits.scalar_type());
    const at::Tensor losses = at::cross_entropy_loss(logits.flatten(0, 1), labels, {}, at::Reduction::None);
    return (losses * counts).sum() / counts.sum();
  };
  const Model alone = tensor::make_on_rank(task, {});
  alone.train();
  const at::Tensor expected = mean(alone.forward(ids_of(0)), {targets});
  expected.backward();
  for (const PipelineSchedule& schedule : {one_forward_one_backward(2, 2), zero_bubble_h1(2, 2)}) {
    run_ranks(2, [&](const comm::Group& group) {
      const Model model = tensor::make_on_rank(task, {});
      model.train();
      Pipeline stages = pipeline(models::model_parts(model), group, {.schedule = schedule, .check_finite = true});
      EXPECT_NEAR(stages.step({ids_of(0)}, {targets}, mean, {.weight = token_count}), expected.item<double>(),
                  pipeline_tolerance);
      const NamedTensors all = alone.named_parameters(), own = model.named_parameters();
      for (size_t i = 0; i < own.size(); ++i) {
        if (own[i].second.numel() == 0) continue;
        EXPECT_TRUE(at::allclose(own[i].second.grad(), all[i].second.grad(), 1e-9, 1e-12)) << own[i].first;
      }
    });
  }
}

TEST(PipelineTraining, LayersThatAreFrozenLater) {
  run_ranks(2, [](const comm::Group& group) {
    Pipeline stages = make_pipeline(tensor::gpt_task(), {.first_parts = {0, 2}}, one_forward_one_backward(2, 2), group);
    stages.step({ids_of(0)}, {targets_of(0)}, mean_token_loss);
    freeze_first_stage(stages.model());
    stages.forget_sizes();
    optim::zero_grad(stages.parameters());
    stages.step({ids_of(0)}, {targets_of(0)}, mean_token_loss);
    for (const at::Tensor& parameter : stages.parameters())
      EXPECT_EQ(parameter.grad().defined(), parameter.requires_grad()) << parameter.sizes();
  });
}

TEST(PipelineTraining, GradScalerSkipsAStepOnAllRanks) {
  run_ranks(2, [&](const comm::Group& group) {
    Pipeline stages = make_pipeline(tensor::gpt_task(), {}, one_forward_one_backward(2, 2), group);
    optim::SGD optimizer(stages.parameters(), optim::SGDOptions{.lr = 0.1});
    amp::GradScaler scaler({.init_scale = 8});
    for (const bool overflow : {false, true}) {
      optimizer.zero_grad();
      const at::Tensor before = stages.parameters()[0].detach().clone();
      stages.step({ids_of(0)}, {targets_of(0)}, mean_token_loss,
                  {.grad_scale = scaler.scale(at::ones({})), .weight = token_count});
      if (overflow && group.rank() == 1) at::Tensor(stages.parameters().back().grad()).fill_(INFINITY);
      scaler.step(optimizer);
      scaler.update();
      EXPECT_EQ(stages.parameters()[0].equal(before), overflow);
    }
  });
}

TEST(PipelineTraining, MeasuredTimelinesHaveAllActions) {
  run_ranks(2, [&](const comm::Group& group) {
    const Model model = tensor::make_on_rank(tensor::gpt_task(), {});
    Pipeline stages =
        pipeline(models::model_parts(model), group, {.schedule = one_forward_one_backward(2, 3), .measure = true});
    stages.step({ids_of(0)}, {targets_of(0)}, mean_token_loss);
    const PipelineTimeline timeline = stages.timeline();
    ASSERT_EQ(timeline.ranks.size(), 2u);
    for (size_t rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(timeline.ranks[rank].size(), 6u);
      for (size_t i = 0; i < 6; ++i) EXPECT_EQ(timeline.ranks[rank][i].action, stages.schedule().ranks[rank][i]);
    }
    EXPECT_GE(timeline.bubble_share(), 0);
    EXPECT_LT(timeline.bubble_share(), 1);
  });
}

TEST(PipelineTraining, PartsComputeForward) {
  for (const Task& task : {tensor::gpt_task(), tensor::bert_task(), tensor::distilbert_task()}) {
    const ModelParts parts = models::model_parts(tensor::make_on_rank(task, {}));
    at::Tensor x;
    for (const ModelPart& part : parts.parts) x = part.run(x, {ids_of(0)});
    EXPECT_TRUE(x.equal(parts.model.forward(ids_of(0)))) << task.name;
  }
}

TEST(PipelineTraining, MeasuredPartsKeepGradients) {
  const Model model = tensor::make_on_rank(tensor::gpt_task(), {});
  const ModelParts parts = models::model_parts(model);
  const auto costs = measure_parts(parts, {ids_of(0)}, 1);
  ASSERT_EQ(costs.size(), 4u);
  for (const PartCost& cost : costs) {
    EXPECT_GT(cost.time_s, 0);
    EXPECT_GT(cost.parameter_bytes, 0);
  }
  for (const at::Tensor& parameter : model.parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
    parameter.mutable_grad() = at::ones_like(parameter);
  }
  measure_parts(parts, {ids_of(0)}, 1);
  for (const at::Tensor& parameter : model.parameters()) EXPECT_TRUE(parameter.grad().eq(1).all().item<bool>());
  EXPECT_EQ(balance_stages(costs, 2).size(), 2u);
}

}  // namespace
}  // namespace bellows::parallel::testing::stages
