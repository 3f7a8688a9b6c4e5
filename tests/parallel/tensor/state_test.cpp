#include <gmock/gmock.h>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/sharded.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/state/state.h"
#include "tests/parallel/saved_tensors.h"
#include "tests/parallel/tensor/tensor_support.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

// A checkpoint of any tensor degree loads on any other one, and on one process.
namespace bellows::parallel::testing::tensor {
namespace {

using ::testing::HasSubstr;

struct TensorRun {
  TensorParallel tensor;
  std::unique_ptr<optim::AdamW> optimizer;

  TensorRun(const Task& task, const comm::Group& group) : tensor(divided(task, group)) {
    optimizer = std::make_unique<optim::AdamW>(distinct_parameters(tensor.model()), optim::AdamWOptions{.lr = 0.01});
  }
  static TensorParallel divided(const Task& task, const comm::Group& group) {
    const Model model = make_on_rank(task, {});
    return parallelize(model, group, tensor_plan(model));
  }
  void train(const Task& task, int64_t first, int64_t end) {
    const auto scope = tensor.scope();
    for (int64_t step = first; step < end; ++step) {
      optimizer->zero_grad();
      task.loss(tensor.forward(task.batch(step)), step).backward();
      optimizer->step();
    }
  }
};

TEST(TensorState, LoadsOnAnyNumberOfRanks) {
  for (const Task& task : {gpt_task(), series_task()}) {
    SCOPED_TRACE(task.name);
    const TemporaryFolder folder;
    const std::string path = folder / "step";
    NamedTensors later;
    run_ranks(2, [&](const comm::Group& group) {
      TensorRun run(task, group);
      run.train(task, 0, 3);
      checkpoint::save_sharded(
          path, {.model = run.tensor.shards(), .optimizer = run.tensor.state_shards(*run.optimizer), .step = 3}, group);
      run.train(task, 3, 6);
      const NamedTensors weights = comm::gather(run.tensor.shards(), group);
      if (group.rank() == 0) later = weights;
    });
    for (const int ranks : {1, 2, 4}) {
      run_ranks(ranks, [&](const comm::Group& group) {
        TensorRun run(task, group);
        load_divided(path, run.tensor, *run.optimizer, group);
        run.train(task, 3, 6);
        expect_close(comm::gather(run.tensor.shards(), group), later, ranks == 2 ? 0 : 1e-6);
      });
    }
  }
}

TEST(TensorState, OneProcessReadsTheCompleteWeights) {
  const Task task = gpt_task();
  const TemporaryFolder folder;
  const std::string path = folder / "step";
  NamedTensors weights;
  run_ranks(4, [&](const comm::Group& group) {
    TensorRun run(task, group);
    run.train(task, 0, 2);
    checkpoint::save_sharded(path, {.model = run.tensor.shards(), .step = 2}, group);
    const NamedTensors all = comm::gather(run.tensor.shards(), group);
    if (group.rank() == 0) weights = all;
  });
  const checkpoint::State state = checkpoint::load(path);
  expect_close(state.model, weights, 0);
  load_state_dict(with_weights(task.make(0, false)), state.model);
}

// A sharded optimizer registers the gradients again, and gives them back.
TEST(TensorState, NormsCountTheSlicesOfAllRanksWithZeROAndAfterIt) {
  const Task task = gpt_task();
  run_ranks(2, [&](const comm::Group& group) {
    TensorRun run(task, group);
    const auto scope = run.tensor.scope();
    const auto norm_with = [&](torch::optim::Optimizer& optimizer) {
      optimizer.zero_grad();
      task.loss(run.tensor.forward(task.batch(0)), 0).backward();
      return optim::clip_grad_norm_(optimizer.param_groups().front().params(), 1e9).item<double>();
    };
    const double expected = norm_with(*run.optimizer);
    run.optimizer->zero_grad();
    const auto adamw = std::make_shared<optim::AdamW>(distinct_parameters(run.tensor.model()), optim::AdamWOptions{});
    const comm::Group alone = comm::subgroup(group, {group.rank()}, "alone");
    std::shared_ptr<ShardedOptimizer> sharded = zero_optimizer(adamw, run.tensor.model(), alone, {.stage = 2});
    EXPECT_NEAR(norm_with(*sharded), expected, 1e-12 * expected);
    const std::shared_ptr<torch::optim::Optimizer> own = sharded->unshard();
    sharded.reset();
    EXPECT_NEAR(norm_with(*own), expected, 1e-12 * expected);
  });
}

TEST(TensorState, StateThatIsNotElementwiseIsRefused) {
  run_ranks(2, [&](const comm::Group& group) {
    TensorRun run(gpt_task(), group);
    optim::Adafactor adafactor(distinct_parameters(run.tensor.model()), optim::AdafactorOptions{});
    const auto scope = run.tensor.scope();
    gpt_task().loss(run.tensor.forward(gpt_task().batch(0)), 0).backward();
    adafactor.step();
    EXPECT_THAT(message_of([&] { run.tensor.state_shards(adafactor); }),
                HasSubstr("the optimizer uses norms, means or matrices of complete parameters"));
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::tensor
