#include <gmock/gmock.h>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/sharded.h"
#include "bellows/optim/state/state.h"
#include "tests/parallel/pipeline/pipeline_support.h"
#include "tests/parallel/saved_tensors.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

// A checkpoint of any number of stages loads on any other one, and on one process.
namespace bellows::parallel::testing::stages {
namespace {

using ::testing::HasSubstr;

/// Two parameter groups, as for weight decay.
std::unique_ptr<optim::AdamW> optimizer_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> matrices, vectors;
  for (const at::Tensor& parameter : parameters) (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  auto optimizer = std::make_unique<optim::AdamW>(matrices, optim::AdamWOptions{.lr = 0.01});
  optimizer->add_param_group(torch::optim::OptimizerParamGroup(vectors));
  return optimizer;
}

struct PipelineRun {
  Pipeline stages;
  std::unique_ptr<optim::AdamW> optimizer;

  PipelineRun(const Task& task, const PipelineSchedule& schedule, const comm::Group& group)
      : stages(make_pipeline(task, {}, schedule, group)), optimizer(optimizer_of(stages.parameters())) {}
  void train(int64_t first, int64_t end) {
    for (int64_t number = first; number < end; ++number) {
      optimizer->zero_grad();
      stages.step({ids_of(number)}, {targets_of(number)}, mean_token_loss, {.weight = token_count});
      optimizer->step();
    }
  }
};

TEST(PipelineState, LoadsOnAnyNumberOfStages) {
  const Task task = tensor::gpt_task();
  const TemporaryFolder folder;
  const std::string path = folder / "step";
  NamedTensors later;
  run_ranks(2, [&](const comm::Group& group) {
    PipelineRun run(task, one_forward_one_backward(2, 2), group);
    run.train(0, 3);
    checkpoint::save_sharded(
        path, {.model = run.stages.shards(), .optimizer = run.stages.state_shards(*run.optimizer), .step = 3}, group);
    run.train(3, 6);
    const NamedTensors weights = comm::gather(run.stages.shards(), group);
    if (group.rank() == 0) later = weights;
  });
  const std::vector<PipelineSchedule> schedules = {one_forward_one_backward(1, 1), zero_bubble_h1(2, 4),
                                                   interleaved(2, 2, 2), gpipe(4, 3)};
  for (const PipelineSchedule& schedule : schedules) {
    SCOPED_TRACE(schedule.name);
    run_ranks(static_cast<int>(schedule.ranks.size()), [&](const comm::Group& group) {
      PipelineRun run(task, schedule, group);
      load_divided(path, run.stages, *run.optimizer, group);
      run.train(3, 6);
      tensor::expect_close(comm::gather(run.stages.shards(), group), later, 1e-9);
    });
  }
}

/// The names and values of the optimizer's state are those of an optimizer in one process.
TEST(PipelineState, NamesAreThoseOfOneProcess) {
  const Task task = tensor::bert_task();
  const Model model = tensor::make_on_rank(task, {});
  model.train();
  const auto alone = optimizer_of(tensor::distinct_parameters(model));
  mean_token_loss(model.forward(ids_of(0)), {targets_of(0)}).backward();
  alone->step();
  const NamedTensors expected = optim::state_dict(*alone);
  run_ranks(2, [&](const comm::Group& group) {
    PipelineRun run(task, one_forward_one_backward(2, 2), group);
    run.train(0, 1);
    NamedTensors got = comm::gather(run.stages.state_shards(*run.optimizer), group);
    ASSERT_EQ(got.size(), expected.size());
    std::map<std::string, at::Tensor> by_name(got.begin(), got.end());
    for (const auto& [name, tensor] : expected) {
      ASSERT_EQ(by_name.count(name), 1u) << name;
      EXPECT_TRUE(at::allclose(by_name[name].to(at::kDouble), tensor.to(at::kDouble), 1e-9, 1e-12)) << name;
    }
  });
}

/// Only the optimizer of rank 1 has such a parameter. Both ranks throw.
TEST(PipelineState, RefusesOptimizersOfOtherParameters) {
  run_ranks(2, [](const comm::Group& group) {
    PipelineRun run(tensor::gpt_task(), one_forward_one_backward(2, 2), group);
    optim::AdamW other({at::zeros({3}).requires_grad_()}, optim::AdamWOptions{});
    EXPECT_THAT(message_of([&] { run.stages.state_shards(group.rank() == 1 ? other : *run.optimizer); }),
                HasSubstr("with sizes [3] belongs to no stage of rank 1"));
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::stages
