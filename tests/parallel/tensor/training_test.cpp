#include <gmock/gmock.h>

#include "bellows/amp/autocast.h"
#include "bellows/models/blocks.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/recompute/partition.h"
#include "tests/parallel/own_processes.h"
#include "tests/parallel/tensor/tensor_support.h"
#include "tests/support/errors.h"

// Training on the ranks of a tensor axis equals training on one process.
namespace bellows::parallel::testing::tensor {
namespace {

TEST(TensorTraining, EqualsOneProcessOnTwoRanks) {
  for (const Task& task : all_tasks()) expect_like_one_process(task, {}, 2, 1e-9);
}

TEST(TensorTraining, EqualsOneProcessOnFourRanks) {
  for (const Task& task : all_tasks()) expect_like_one_process(task, {}, 4, 1e-9);
}

TEST(TensorTraining, DrawsTheMasksOfOneProcess) {
  for (const Task& task : all_tasks()) {
    for (const int ranks : {2, 4})
      expect_like_one_process(task, {.accumulate = 2, .dropout = 0.2, .max_norm = 0.5}, ranks, 1e-9);
  }
}

TEST(TensorTraining, FusedLayers) {
  for (const Task& task : all_tasks()) expect_like_one_process(task, {.steps = 5, .fused = true}, 2, 1e-9);
}

TEST(TensorTraining, SequenceParallel) {
  for (const Task& task : {bert_task(), gpt_task(), distilbert_task()}) {
    SCOPED_TRACE(task.name);
    const Training how{.accumulate = 2, .dropout = 0.2, .max_norm = 0.5};
    const Outcome alone = train_alone(task, how);
    std::mutex reports;
    run_ranks(2, [&](const comm::Group& group) {
      const Model whole = make_on_rank(task, how);
      whole.train();
      const TensorParallel tensor =
          parallelize(whole, group, tensor_plan(whole), {.generator = at::detail::createCPUGenerator(mask_seed)});
      models::run_blocks_by(whole, tensor.sequence_blocks(models::run_blocks_by(whole, {})));
      const auto scope = tensor.scope();
      Outcome got;
      run_steps(
          task, how, tensor.model(), [&](const at::Tensor& x) { return tensor.forward(x); }, got,
          [&] { return gathered_gradients(tensor); });
      got.weights = comm::gather(tensor.shards(), group);
      const std::lock_guard<std::mutex> lock(reports);
      expect_close(got, alone, 1e-9);
    });
  }
}

void checkpoint_blocks(const Model& model) {
  models::run_blocks_by(
      model, [](const models::Block& block, const at::Tensor& x) { return recompute::checkpoint(block, x); });
}

TEST(TensorTraining, WithActivationCheckpointing) {
  const Training how{.steps = 5, .prepare = checkpoint_blocks};
  for (const Task& task : {bert_task(), gpt_task(), series_task()}) expect_like_one_process(task, how, 2, 1e-9);
}

TEST(TensorTraining, CheckpointedDropoutRefusesAnotherGenerator) {
  const Task task = gpt_task();
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      const Model model = make_on_rank(task, {.dropout = 0.2});
      model.train();
      const TensorParallel tensor =
          parallelize(model, group, tensor_plan(model), {.generator = at::detail::createCPUGenerator(mask_seed)});
      checkpoint_blocks(model);
      const auto scope = tensor.scope();
      const at::Tensor loss = task.loss(tensor.forward(task.batch(0)), 0);
      EXPECT_THAT(message_of([&] { loss.backward(); }),
                  ::testing::HasSubstr("repeated a dropout that draws its mask with TensorOptions::generator"));
      comm::barrier(group);
    });
  }
}

// In processes, because the ranks of run_ranks() share the default generator.
TEST(TensorTraining, CheckpointedDropoutOfTheDefaultGenerator) {
  run_processes(2, [](const comm::World& world, const std::string&) {
    const Training how{.steps = 5, .dropout = 0.2, .default_generator = true, .prepare = checkpoint_blocks};
    for (const Task& task : {bert_task(), gpt_task(), distilbert_task()}) {
      SCOPED_TRACE(task.name);
      const Outcome alone = train_alone(task, how);
      expect_close(train_on_rank(task, how, world), alone, 1e-9);
    }
  });
}

// In processes, for the same reason.
TEST(TensorTraining, PartitionedActivationCheckpointing) {
  run_processes(2, [](const comm::World& world, const std::string&) {
    const Training how{.steps = 5, .dropout = 0.2, .default_generator = true, .prepare = checkpoint_blocks};
    for (const Task& task : {bert_task(), gpt_task()}) {
      SCOPED_TRACE(task.name);
      const Outcome alone = train_alone(task, how);
      const recompute::PartitionGuard guard(world, {.min_bytes = 1});
      expect_close(train_on_rank(task, how, world), alone, 1e-9);
      EXPECT_GT(guard.stats().tensors, 0);
    }
  });
}

// In processes, for the same reason.
TEST(TensorTraining, SelectiveActivationCheckpointing) {
  run_processes(2, [](const comm::World& world, const std::string&) {
    const auto keep = [](const Model& model) {
      models::run_blocks_by(model, [](const models::Block& block, const at::Tensor& x) {
        return recompute::checkpoint({.policy = keep_matmuls}, block, x);
      });
    };
    const Training how{.steps = 5, .dropout = 0.2, .default_generator = true, .prepare = keep};
    for (const Task& task : {bert_task(), gpt_task()}) {
      SCOPED_TRACE(task.name);
      const Outcome alone = train_alone(task, how);
      expect_close(train_on_rank(task, how, world), alone, 1e-9);
    }
  });
}

TEST(TensorTraining, InSinglePrecision) {
  for (const Task& task : all_tasks()) expect_like_one_process(task, {.dropout = 0.1, .dtype = at::kFloat}, 2, 1e-4);
}

TEST(TensorTraining, InHalfPrecision) {
  for (const Task& task : all_tasks()) expect_like_one_process(task, {.steps = 3, .dtype = at::kBFloat16}, 2, 0.05);
}

TEST(TensorTraining, LossesInHalfPrecision) {
  const Training how{.dtype = at::kBFloat16, .one_batch = true};
  for (const Task& task : all_tasks()) {
    SCOPED_TRACE(task.name);
    expect_same_descent(train_alone(task, how),
                        [&](const comm::Group& group) { return train_on_rank(task, how, group); });
  }
}

TEST(TensorTraining, UnderAutocast) {
  for (const Task& task : {bert_task(), gpt_task()}) {
    const Training how{.steps = 3, .dtype = at::kFloat};
    Outcome alone;
    {
      const amp::AutocastGuard autocast(c10::DeviceType::CPU, at::kBFloat16);
      alone = train_alone(task, how);
    }
    std::mutex reports;
    run_ranks(2, [&](const comm::Group& group) {
      const amp::AutocastGuard autocast(c10::DeviceType::CPU, at::kBFloat16);
      const Outcome got = train_on_rank(task, how, group);
      const std::lock_guard<std::mutex> lock(reports);
      for (size_t i = 0; i < got.losses.size(); ++i) EXPECT_NEAR(got.losses[i], alone.losses[i], 0.03);
      expect_close(got.gradients, alone.gradients, 0.05);
    });
  }
}

TEST(TensorTraining, OneRankIsBitIdentical) {
  const Outcome alone = train_alone(gpt_task(), {.steps = 3});
  run_ranks(1, [&](const comm::Group& group) {
    const Outcome got = train_on_rank(gpt_task(), {.steps = 3}, group);
    EXPECT_EQ(got.losses, alone.losses);
    expect_close(got.weights, alone.weights, 0);
  });
}

/// Two replicas of a model on two ranks each: the global batch has six samples.
TEST(TensorTraining, WithDataParallelReplicas) {
  const Task task = gpt_task();
  const auto target = [](int64_t step) { return drawn_ids(37, {6, 6}, 900 + static_cast<uint64_t>(step)); };
  const auto batch = [](int64_t step) { return drawn_ids(37, {6, 6}, static_cast<uint64_t>(step)); };
  const auto loss_of = [](const at::Tensor& logits, const at::Tensor& y) {
    return at::cross_entropy_loss(logits.flatten(0, 1), y.flatten());
  };
  const Model alone = with_weights(task.make(0, false));
  optim::SGD reference(distinct_parameters(alone), optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
  for (int64_t step = 0; step < 20; ++step) {
    reference.zero_grad();
    loss_of(alone.forward(batch(step)), target(step)).backward();
    optim::clip_grad_norm_(distinct_parameters(alone), 0.5);
    reference.step();
  }
  run_ranks(4, [&](const comm::Group& world) {
    const comm::Mesh mesh(world, {{"data", 2}, {"tensor", 2}});
    const Model whole = make_on_rank(task, {});
    const TensorParallel tensor = parallelize(whole, mesh, "tensor", tensor_plan(whole));
    const DistributedDataParallel ddp(tensor.model(), mesh.group("data"));
    const auto scope = tensor.scope();
    const std::vector<at::Tensor> parameters = distinct_parameters(tensor.model());
    optim::SGD optimizer(parameters, optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
    const int64_t first = 3 * mesh.coordinate("data");
    for (int64_t step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      loss_of(ddp.forward(batch(step).narrow(0, first, 3)), target(step).narrow(0, first, 3)).backward();
      optim::clip_grad_norm_(parameters, 0.5);
      optimizer.step();
    }
    expect_close(comm::gather(tensor.shards(), tensor.group()), alone.named_parameters(), 1e-9);
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::tensor
