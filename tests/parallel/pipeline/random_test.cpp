#include <gmock/gmock.h>

#include "bellows/comm/world.h"
#include "bellows/models/blocks.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "tests/parallel/own_processes.h"
#include "tests/parallel/pipeline/pipeline_support.h"

// Dropout masks do not depend on the number of ranks, the stages or the schedule. Each rank is a process, because the
// default generator belongs to the process.
namespace bellows::parallel::testing::stages {
namespace {

void expect_masks_of_one_rank(const comm::World& world) {
  const comm::Group own = comm::subgroup(world, {world.rank()}, "alone");
  const comm::Group half = comm::subgroup(world, world.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}, "half");
  const StagedTraining run{.accumulate = 2, .max_norm = 0.5, .dropout = 0.3};
  StagedTraining plain = run, recomputed = run;
  plain.dropout = 0;
  recomputed.divide_backward = false;
  recomputed.prepare = [](const Model& model) {
    models::run_blocks_by(
        model, [](const models::Block& block, const at::Tensor& x) { return recompute::checkpoint(block, x); });
  };
  for (const Task& task : {tensor::gpt_task(), tensor::bert_task()}) {
    SCOPED_TRACE(task.name);
    const Outcome alone = train_on_rank(task, run, gpipe(1, 4), own);
    const Outcome without = train_on_rank(task, plain, gpipe(1, 4), own);
    EXPECT_GT(std::abs(alone.losses[0] - without.losses[0]), 1e-6) << "dropout did nothing";
    expect_like(train_on_rank(task, run, one_forward_one_backward(4, 4), world), alone, 1e-9);
    expect_like(train_on_rank(task, run, zero_bubble_h1(4, 4), world), alone, 1e-9);
    expect_like(train_on_rank(task, run, interleaved(2, 4, 2), half), alone, 1e-9);
    expect_like(train_on_rank(task, recomputed, one_forward_one_backward(2, 4), half), alone, 1e-9);
  }
}

/// Masks do not depend on the number of tensor ranks. They differ between data ranks, but not with the number of stages.
void expect_masks_of_meshes(const comm::World& world) {
  const Task task = tensor::gpt_task();
  const comm::Group own = comm::subgroup(world, {world.rank()}, "alone");
  const comm::Mesh mesh(world, {{"pipeline", 2}, {"other", 2}});
  const StagedTraining run{.steps = 5, .accumulate = 2, .max_norm = 0.5, .dropout = 0.3};
  StagedTraining divided = run, replicated = run, whole = run;
  divided.tensor = replicated.data = whole.data = mesh.group("other");
  divided.world = world;
  const Outcome alone = train_on_rank(task, run, gpipe(1, 4), own);
  expect_like(train_on_rank(task, divided, zero_bubble_h1(2, 4), mesh.group("pipeline")), alone, 1e-9);
  const Outcome both = train_on_rank(task, whole, gpipe(1, 4), own);
  EXPECT_GT(std::abs(both.losses[0] - alone.losses[0]), 1e-6) << "both data ranks drew the same masks";
  expect_like(train_on_rank(task, replicated, one_forward_one_backward(2, 4), mesh.group("pipeline")), both, 1e-9);
}

/// Steps leave the state of the default generator as it was.
void expect_kept_generator(const comm::World& world) {
  Pipeline stages = make_pipeline(tensor::gpt_task(), {.dropout = 0.3}, one_forward_one_backward(4, 4), world);
  at::manual_seed(5);
  const at::Tensor expected = at::rand({3});
  at::manual_seed(5);
  stages.step({ids_of(0)}, {targets_of(0)}, mean_token_loss);
  EXPECT_TRUE(at::rand({3}).equal(expected));
}

TEST(PipelineRandom, MasksAreThoseOfOneRank) {
  run_processes(4,
                [](const comm::World& world, const std::string&) {
                  expect_masks_of_one_rank(world);
                  expect_masks_of_meshes(world);
                  expect_kept_generator(world);
                },
                {.timeout_s = 600});
}

}  // namespace
}  // namespace bellows::parallel::testing::stages
