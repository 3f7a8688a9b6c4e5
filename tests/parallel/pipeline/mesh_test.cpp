#include <gmock/gmock.h>

#include "bellows/amp/grad_scaler.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/sharded.h"
#include "bellows/comm/mesh.h"
#include "bellows/models/blocks.h"
#include "tests/parallel/pipeline/pipeline_support.h"
#include "tests/parallel/saved_tensors.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

// Pipelines on meshes with a data axis, a tensor axis or both. 20 steps are those of one process, in fp64 to 1e-9.
namespace bellows::parallel::testing::stages {
namespace {

using ::testing::HasSubstr;

struct Axes {
  int data = 1, pipeline = 2, tensor = 1;
  int ranks() const { return data * pipeline * tensor; }
};

/// The parts of a batch that the pipelines of two data ranks get: samples with few and with many tokens that count.
at::Tensor part_of_batch(const at::Tensor& batch, const Axes& axes, int data_rank) {
  return axes.data == 1 ? batch : data_rank == 0 ? batch.narrow(0, 0, 3) : batch.narrow(0, 3, 2);
}

/// A rank of a mesh, and its pipeline.
struct MeshRank {
  comm::Mesh mesh;
  Axes axes;
  Pipeline stages;

  MeshRank(const Task& task, const Axes& mesh_axes, const PipelineSchedule& schedule, const comm::Group& world)
      : mesh(world, {{"data", mesh_axes.data}, {"pipeline", mesh_axes.pipeline}, {"tensor", mesh_axes.tensor}}),
        axes(mesh_axes),
        stages(start(task, schedule)) {}

  double step(int64_t number, double factor, bool average) {
    const int data_rank = mesh.coordinate("data");
    return stages.step({part_of_batch(ids_of(number), axes, data_rank)},
                       {part_of_batch(targets_of(number), axes, data_rank)}, mean_token_loss,
                       {.loss_factor = factor, .weight = token_count, .average_gradients = average});
  }

 private:
  Pipeline start(const Task& task, const PipelineSchedule& schedule) {
    StagedTraining run{.data = mesh.group("data")};
    if (axes.tensor > 1) run.tensor = mesh.group("tensor");
    return make_pipeline(task, run, schedule, mesh.group("pipeline"));
  }
};

/// Params: lazy – average the gradients only in the last step of an accumulation
void expect_mesh_like(const Outcome& alone, const Task& task, const StagedTraining& run, const Axes& axes,
                      const PipelineSchedule& schedule, bool lazy = true) {
  SCOPED_TRACE(c10::str(task.name, ", ", schedule.name, ", data ", axes.data, ", tensor ", axes.tensor));
  std::mutex reports;
  run_ranks(axes.ranks(), [&](const comm::Group& world) {
    MeshRank rank(task, axes, schedule, world);
    Outcome got;
    train(
        run, rank.stages.parameters(),
        [&](int64_t number, double factor) {
          return rank.step(number, factor, !lazy || (number + 1) % run.accumulate == 0);
        },
        got);
    got.weights = comm::gather(rank.stages.shards(), world);
    const std::lock_guard<std::mutex> lock(reports);
    expect_like(got, alone, 1e-9);
  });
}

TEST(PipelineMesh, DataAxisMatchesOneProcess) {
  const StagedTraining run{.accumulate = 2, .max_norm = 0.5};
  const Task task = tensor::gpt_task();
  const Outcome alone = train_alone(task, run);
  for (const bool lazy : {true, false}) expect_mesh_like(alone, task, run, {.data = 2}, gpipe(2, 2), lazy);
  expect_mesh_like(alone, task, run, {.data = 2}, zero_bubble_h1(2, 2));
  expect_mesh_like(alone, task, run, {.data = 2, .pipeline = 1}, gpipe(1, 2));
}

TEST(PipelineMesh, TensorAxisMatchesOneProcess) {
  const StagedTraining run{.accumulate = 2, .max_norm = 0.5};
  for (const Task& task : {tensor::gpt_task(), tensor::bert_task()}) {
    const Outcome alone = train_alone(task, run);
    expect_mesh_like(alone, task, run, {.tensor = 2}, one_forward_one_backward(2, 3));
    expect_mesh_like(alone, task, run, {.tensor = 2}, zero_bubble_h1(2, 3));
  }
  const StagedTraining few{.steps = 5, .max_norm = 0.5};
  const Outcome alone = train_alone(tensor::gpt_task(), few);
  expect_mesh_like(alone, tensor::gpt_task(), few, {.tensor = 2}, interleaved(2, 4, 2));
  expect_mesh_like(alone, tensor::gpt_task(), few, {.data = 2, .tensor = 2}, one_forward_one_backward(2, 2));
}

/// Trains with ZeRO over the data axis.
Outcome train_sharded(MeshRank& rank, const StagedTraining& run, const ShardOptions& options,
                      const comm::Group& world) {
  const std::vector<at::Tensor>& parameters = rank.stages.parameters();
  const auto sgd = std::make_shared<optim::SGD>(parameters, optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
  const auto sharded = zero_optimizer(sgd, rank.stages.model(), rank.mesh.group("data"), options);
  Outcome got;
  for (int64_t step = 0; step < run.steps; ++step) {
    sharded->zero_grad();
    double sum = 0;
    for (int64_t part = 0; part < run.accumulate; ++part) {
      const bool average = options.stage > 1 || part + 1 == run.accumulate;
      sum += rank.step(step * run.accumulate + part, 1.0 / static_cast<double>(run.accumulate), average);
    }
    got.losses.push_back(sum);
    got.norms.push_back(optim::clip_grad_norm_(parameters, run.max_norm).item<double>());
    sharded->step();
  }
  sharded->with_full_parameters([&] { got.weights = comm::gather(rank.stages.shards(), world); });
  return got;
}

/// GPT-2 ties the embeddings in the first stage and the head in the last one.
TEST(PipelineMesh, ShardedStagesMatchOneProcess) {
  const StagedTraining run{.steps = 8, .accumulate = 2, .max_norm = 0.5};
  const Task task = tensor::gpt_task();
  const Outcome alone = train_alone(task, run);
  std::mutex reports;
  const auto expect_like_alone = [&](const Axes& axes, const PipelineSchedule& schedule, const ShardOptions& options) {
    SCOPED_TRACE(c10::str(schedule.name, ", stage ", options.stage, ", tensor ", axes.tensor));
    run_ranks(axes.ranks(), [&](const comm::Group& world) {
      MeshRank rank(task, axes, schedule, world);
      const Outcome got = train_sharded(rank, run, options, world);
      const std::lock_guard<std::mutex> lock(reports);
      expect_like(got, alone, 1e-9);
    });
  };
  for (const int stage : {1, 2, 3}) {
    expect_like_alone({.data = 2}, one_forward_one_backward(2, 2), {.stage = stage, .bucket_bytes = 2000});
    expect_like_alone({.data = 2, .tensor = 2}, gpipe(2, 2), {.stage = stage});
  }
  for (const bool reshard : {true, false})
    expect_like_alone({.data = 2}, zero_bubble_h1(2, 2),
                      {.stage = 3, .bucket_bytes = 2000, .reshard_after_forward = reshard});
  expect_like_alone({.data = 2}, gpipe(2, 2), {.stage = 2, .reduce_dtype = at::kDouble});
}

/// One exchange per step, which sends each gradient once, and not one for each micro-batch.
TEST(PipelineMesh, ShardedStagesExchangeGradientsOncePerStep) {
  run_ranks(4, [](const comm::Group& world) {
    const auto sent = [&](int micro_batches) {
      MeshRank rank(tensor::gpt_task(), {.data = 2}, one_forward_one_backward(2, micro_batches), world);
      const comm::Group& data = rank.mesh.group("data");
      const auto sgd = std::make_shared<optim::SGD>(rank.stages.parameters(), optim::SGDOptions{.lr = 0.05});
      const auto sharded = zero_optimizer(sgd, rank.stages.model(), data, {.stage = 2});
      const int64_t before = comm::traffic(data)["reduce_scatter"].bytes;
      rank.step(0, 1, true);
      sharded->step();
      return comm::traffic(data)["reduce_scatter"].bytes - before;
    };
    const int64_t once = sent(1);
    EXPECT_GT(once, 0);
    EXPECT_EQ(sent(2), once);
  });
}

TEST(PipelineMesh, GradScalerSkipsAStepOnAllAxes) {
  for (const Axes& axes : {Axes{.data = 2}, Axes{.tensor = 2}}) {
    run_ranks(4, [&](const comm::Group& world) {
      MeshRank rank(tensor::gpt_task(), axes, gpipe(2, 2), world);
      const std::vector<at::Tensor>& parameters = rank.stages.parameters();
      optim::SGD optimizer(parameters, optim::SGDOptions{.lr = 0.1});
      amp::GradScaler scaler({.init_scale = 8});
      for (const bool overflow : {false, true}) {
        optimizer.zero_grad();
        // The loss of one pipeline is infinite on the data axis, and one gradient on the tensor axis.
        const at::Tensor scale = scaler.scale(at::ones({}));
        const bool bad_loss = overflow && axes.data == 2 && rank.mesh.coordinate("data") == 1;
        rank.stages.step({ids_of(0)}, {targets_of(0)}, mean_token_loss,
                         {.grad_scale = bad_loss ? scale * INFINITY : scale});
        if (overflow && axes.tensor == 2 && world.rank() == 3) at::Tensor(parameters.back().grad()).fill_(INFINITY);
        const at::Tensor before = parameters[0].detach().clone();
        scaler.step(optimizer);
        scaler.update();
        EXPECT_EQ(parameters[0].equal(before), overflow);
      }
    });
  }
}

TEST(PipelineMesh, EvaluatesWithDividedLayers) {
  const Task task = tensor::gpt_task();
  const at::Tensor expected = tensor::make_on_rank(task, {}).forward(ids_of(0));
  run_ranks(4, [&](const comm::Group& world) {
    MeshRank rank(task, {.tensor = 2}, gpipe(2, 2), world);
    const at::Tensor logits = rank.stages.forward({ids_of(0)});
    ASSERT_EQ(logits.defined(), rank.mesh.coordinate("pipeline") == 1);
    if (!logits.defined()) return;
    const int64_t first = rank.mesh.coordinate("tensor") == 0 ? 0 : 37 / 2;
    EXPECT_TRUE(at::allclose(logits, expected.narrow(-1, first, logits.size(-1)), 1e-9, 1e-12));
  });
}

/// Trains from step `begin` to step `end`. Returns the complete weights.
NamedTensors train_with_adamw(const Axes& axes, const comm::Group& world, int64_t begin, int64_t end,
                              const std::string& path, bool save) {
  MeshRank rank(tensor::gpt_task(), axes, gpipe(axes.pipeline, 2), world);
  optim::AdamW optimizer(rank.stages.parameters(), optim::AdamWOptions{.lr = 0.01});
  if (!save) load_divided(path, rank.stages, optimizer, world);
  for (int64_t number = begin; number < end; ++number) {
    optimizer.zero_grad();
    rank.step(number, 1, true);
    optimizer.step();
    if (save && number == 2) {
      checkpoint::save_sharded(
          path, {.model = rank.stages.shards(), .optimizer = rank.stages.state_shards(optimizer), .step = 3}, world);
    }
  }
  return comm::gather(rank.stages.shards(), world);
}

/// Each element is saved once, although several pipelines hold it.
TEST(PipelineMesh, CheckpointsMoveBetweenMeshes) {
  const std::vector<Axes> all = {{.data = 2}, {.tensor = 2}};
  for (const Axes& writer : all) {
    const TemporaryFolder folder;
    const std::string path = folder / "step";
    NamedTensors later;
    run_ranks(writer.ranks(), [&](const comm::Group& world) {
      const NamedTensors weights = train_with_adamw(writer, world, 0, 6, path, true);
      if (world.rank() == 0) later = weights;
    });
    for (const Axes& reader : {all[0], all[1], Axes{.pipeline = 1}}) {
      run_ranks(reader.ranks(), [&](const comm::Group& world) {
        tensor::expect_close(train_with_adamw(reader, world, 3, 6, path, false), later, 1e-9);
      });
    }
  }
}

TEST(PipelineMesh, OtherWeightsAreCopiedOrRefused) {
  for (const bool broadcast : {true, false}) {
    run_ranks(2, [&](const comm::Group& data) {
      const comm::Group own = comm::subgroup(data, {data.ranks()[static_cast<size_t>(data.rank())]}, "own");
      const Model model = tensor::make_on_rank(tensor::gpt_task(), {});
      at::Tensor last = model.parameters().back();
      last.detach().add_(data.rank());
      const auto start = [&] {
        pipeline(models::model_parts(model), own, {.schedule = gpipe(1, 2), .broadcast = broadcast, .data = data});
      };
      EXPECT_THAT(message_of(start), HasSubstr(broadcast ? "no error" : "differs between ranks 0 and 1"));
      const at::Tensor first = comm::broadcast(last.detach().clone(), 0, data);
      EXPECT_EQ(last.equal(first), broadcast || data.rank() == 0);
    });
  }
}

TEST(PipelineMesh, MisuseIsRefused) {
  run_ranks(2, [](const comm::Group& group) {
    const Task task = tensor::gpt_task();
    const Model model = tensor::make_on_rank(task, {});
    const auto parts = models::model_parts(model);
    EXPECT_THAT(message_of([&] { pipeline(parts, group, {.schedule = gpipe(2, 2), .data = group}); }),
                HasSubstr("in common. Expected only this rank"));
    const TensorParallel divided = parallelize(model, group, tensor_plan(model));
    const comm::Group own = comm::subgroup(group, {group.ranks()[static_cast<size_t>(group.rank())]}, "own");
    EXPECT_THAT(message_of([&] { pipeline(parts, own, {.schedule = gpipe(1, 2)}); }),
                HasSubstr("as PipelineOptions::tensor"));
    const auto others = models::model_parts(tensor::make_on_rank(task, {}));
    EXPECT_THAT(message_of([&] { pipeline(others, own, {.schedule = gpipe(1, 2), .tensor = divided}); }),
                HasSubstr("divided another model"));
  });
}

TEST(PipelineMesh, SequenceParallelismIsRefused) {
  run_ranks(4, [](const comm::Group& world) {
    const comm::Mesh mesh(world, {{"pipeline", 2}, {"tensor", 2}});
    const Model model = tensor::make_on_rank(tensor::gpt_task(), {});
    const TensorParallel divided = parallelize(model, mesh, "tensor", tensor_plan(model));
    models::run_blocks_by(model, divided.sequence_blocks(2));
    Pipeline stages =
        pipeline(models::model_parts(model), mesh.group("pipeline"), {.schedule = gpipe(2, 2), .tensor = divided});
    EXPECT_THAT(message_of([&] { stages.step({ids_of(0)}, {targets_of(0)}, mean_token_loss); }),
                HasSubstr("Sequence parallelism is not supported in a pipeline."));
  });
}

TEST(PipelineMesh, ABatchWithoutWeightCountsNothing) {
  const Task task = tensor::gpt_task();
  const Model alone = tensor::make_on_rank(task, {});
  alone.train();
  const at::Tensor expected = mean_token_loss(alone.forward(ids_of(0)), {targets_of(0)});
  expected.backward();
  run_ranks(4, [&](const comm::Group& world) {
    const MeshRank rank(task, {.data = 2}, one_forward_one_backward(2, 2), world);
    Pipeline stages = rank.stages;
    at::Tensor targets = targets_of(0);
    if (rank.mesh.coordinate("data") == 1) targets.fill_(-100);
    EXPECT_NEAR(stages.step({ids_of(0)}, {targets}, mean_token_loss, {.weight = token_count}), expected.item<double>(),
                1e-9);
    for (const at::Tensor& parameter : stages.parameters()) EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
  });
}

/// All pipelines of the data axis throw, and can continue with the next batch.
TEST(PipelineMesh, BatchesOfOnePipelineEndTheStepOfAll) {
  run_ranks(2, [](const comm::Group& data) {
    const comm::Group own = comm::subgroup(data, {data.ranks()[static_cast<size_t>(data.rank())]}, "own");
    const Model model = tensor::make_on_rank(tensor::gpt_task(), {});
    Pipeline stages = pipeline(models::model_parts(model), own, {.schedule = gpipe(1, 2), .data = data});
    const int64_t samples = data.rank() == 0 ? 1 : 4;
    const std::string message = message_of([&] {
      stages.step({ids_of(0).narrow(0, 0, samples)}, {targets_of(0).narrow(0, 0, samples)}, mean_token_loss);
    });
    EXPECT_THAT(message, HasSubstr(data.rank() == 0 ? "a batch with 1 samples" : "could not divide its batch"));
    EXPECT_GT(stages.step({ids_of(0)}, {targets_of(0)}, mean_token_loss), 0);
  });
}

/// The reason reaches the ranks of other pipelines.
TEST(PipelineMesh, FailuresEndAllPipelines) {
  run_ranks(4, [](const comm::Group& world) {
    MeshRank rank(tensor::gpt_task(), {.data = 2}, gpipe(2, 2), world);
    const auto loss = [&](const at::Tensor& logits, const std::vector<at::Tensor>& targets) {
      TORCH_CHECK(rank.mesh.coordinate("data") == 0, "the test ends this rank");
      return mean_token_loss(logits, targets);
    };
    const int64_t first = rank.mesh.coordinate("data") * 2;
    const std::string message = message_of(
        [&] { rank.stages.step({ids_of(0).narrow(0, first, 2)}, {targets_of(0).narrow(0, first, 2)}, loss); });
    EXPECT_THAT(message, HasSubstr("rank 1 of pipeline 1 failed in forward of micro-batch 0 in stage 1"));
    EXPECT_THAT(message, HasSubstr("the test ends this rank"));
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::stages
