#include <gmock/gmock.h>
#include <torch/nn.h>

#include "bellows/comm/mesh.h"
#include "tests/parallel/pipeline/pipeline_support.h"
#include "tests/support/errors.h"

namespace bellows::parallel::testing::stages {
namespace {

using ::testing::HasSubstr;

void step_of(Pipeline& stages, const PipelineLoss& loss = mean_token_loss) {
  stages.step({ids_of(0)}, {targets_of(0)}, loss);
}

TEST(PipelineErrors, BadInputIsRefusedBeforeAStep) {
  const Task task = tensor::gpt_task();
  run_ranks(2, [&](const comm::Group& group) {
    const PipelineSchedule schedule = one_forward_one_backward(2, 2);
    const ModelParts parts = models::model_parts(tensor::make_on_rank(task, {}));
    const auto error_of = [&](const PipelineOptions& options, const ModelParts& of) {
      return message_of([&] { pipeline(of, group, options); });
    };
    EXPECT_THAT(error_of({.schedule = one_forward_one_backward(3, 2)}, parts), HasSubstr("is for 3 ranks, but group"));
    EXPECT_THAT(error_of({.schedule = schedule, .first_parts = {0, 1, 2}}, parts), HasSubstr("got 3 stages"));
    EXPECT_THAT(error_of({.schedule = schedule, .first_parts = {0, 4}}, parts),
                HasSubstr("Expected numbers from 0 to 3"));
    ModelParts without = parts;
    without.parts.push_back({"relu", {}, [](const at::Tensor& x, const std::vector<at::Tensor>&) { return x.relu(); }});
    EXPECT_THAT(error_of({.schedule = schedule, .first_parts = {0, 4}}, without),
                HasSubstr("stage 1 (parts 4 to 4) has no parameters"));
    without = parts;
    without.parts[1].tensors.clear();
    EXPECT_THAT(error_of({.schedule = schedule}, without),
                HasSubstr("\"transformer.h.0.ln_1.weight\" belongs to no part"));
    Pipeline stages = pipeline(parts, group, {.schedule = schedule});
    EXPECT_THAT(message_of([&] { stages.step({ids_of(0).narrow(0, 0, 1)}, {}, mean_token_loss); }),
                HasSubstr("a batch with 1 samples cannot be divided into 2 micro-batches"));
    EXPECT_THAT(message_of([&] { stages.step({ids_of(0)}, {ids_of(0).narrow(0, 0, 2)}, mean_token_loss); }),
                HasSubstr("the same number of samples"));
    EXPECT_THAT(message_of([&] { stages.timeline(); }), HasSubstr("set PipelineOptions::measure"));
    step_of(stages);  // still works
  });
  EXPECT_THAT(message_of([] { models::model_parts(Model::of(torch::nn::Linear(2, 2), "net")); }),
              HasSubstr("\"net\" cannot be divided into a sequence of parts"));
}

TEST(PipelineErrors, ZeroOverOtherRanksIsRefused) {
  run_ranks(2, [](const comm::Group& group) {
    const Model model = tensor::make_on_rank(tensor::gpt_task(), {});
    Pipeline stages = pipeline(models::model_parts(model), group, {.schedule = one_forward_one_backward(2, 2)});
    const auto adamw = std::make_shared<optim::AdamW>(stages.parameters(), optim::AdamWOptions{});
    const comm::Group alone = comm::subgroup(group, {group.rank()}, "alone");
    const auto sharded = zero_optimizer(adamw, model, alone, {.stage = 2});
    EXPECT_EQ(sharded->parameters().size(), stages.parameters().size());
    step_of(stages);  // without a data axis, each rank averages over itself only
    for (const at::Tensor& parameter : stages.parameters()) EXPECT_FALSE(parameter.grad().defined());
    EXPECT_TRUE(sharded->param_groups()[0].params()[0].grad().defined());
  });
  run_ranks(4, [](const comm::Group& world) {
    const comm::Mesh mesh(world, {{"data", 2}, {"pipeline", 2}});
    const Model model = tensor::make_on_rank(tensor::gpt_task(), {});
    Pipeline stages = pipeline(models::model_parts(model), mesh.group("pipeline"),
                               {.schedule = one_forward_one_backward(2, 2), .data = mesh.group("data")});
    const auto adamw = std::make_shared<optim::AdamW>(stages.parameters(), optim::AdamWOptions{});
    const comm::Group alone = comm::subgroup(world, {world.rank()}, "alone");
    const auto sharded = zero_optimizer(adamw, model, alone, {.stage = 2});
    EXPECT_THAT(message_of([&] { step_of(stages); }), HasSubstr("Pass the group of these axes to zero_optimizer()"));
  });
}

TEST(PipelineErrors, RanksThatDifferAreNamed) {
  const auto errors = messages_of_ranks(2, [](const comm::Group& group) {
    const Model model = tensor::make_on_rank(tensor::gpt_task(), {});
    pipeline(models::model_parts(model), group, {.schedule = one_forward_one_backward(2, group.rank() == 0 ? 2 : 4)});
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("the ranks have different options or versions for pipeline parallelism"));
    EXPECT_THAT(error, HasSubstr("micro_batches 4"));
  }
}

TEST(PipelineErrors, AnExceptionReachesAllRanks) {
  for (const PipelineSchedule& schedule : {one_forward_one_backward(4, 4), zero_bubble_h1(4, 4)}) {
    const auto errors = messages_of_ranks(4, [&](const comm::Group& group) {
      Pipeline stages = make_pipeline(tensor::gpt_task(), {}, schedule, group);
      step_of(stages);
      const PipelineLoss failing = [](const at::Tensor&, const std::vector<at::Tensor>&) -> at::Tensor {
        TORCH_CHECK(false, "no loss today");
      };
      const std::string first = message_of([&] { step_of(stages, failing); });
      EXPECT_THAT(message_of([&] { step_of(stages); }), HasSubstr("no loss today"));
      TORCH_CHECK(false, first);
    });
    for (const std::string& error : errors)
      EXPECT_THAT(error, HasSubstr("pipeline: rank 3 failed in forward of micro-batch 0 in stage 3: no loss today"));
  }
}

TEST(PipelineErrors, NotANumberReachesAllRanks) {
  const auto errors = messages_of_ranks(2, [&](const comm::Group& group) {
    const Model model = tensor::make_on_rank(tensor::gpt_task(), {});
    Pipeline stages = pipeline(models::model_parts(model), group, {.schedule = gpipe(2, 2), .check_finite = true});
    const at::NoGradGuard no_grad;
    if (group.rank() == 0) at::Tensor(stages.parameters()[0]).fill_(NAN);
    step_of(stages);
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error,
                HasSubstr("rank 0 failed in forward of micro-batch 0 in stage 0: the output is infinite or NaN"));
}

TEST(PipelineErrors, GradientsThatAreNoLongerNeededReachAllRanks) {
  const auto errors = messages_of_ranks(2, [&](const comm::Group& group) {
    Pipeline stages = make_pipeline(tensor::gpt_task(), {.first_parts = {0, 2}}, one_forward_one_backward(2, 2), group);
    step_of(stages);
    freeze_first_stage(stages.model());
    step_of(stages);
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, HasSubstr("changed from Double [3, 6, 16] with a gradient to Double [3, 6, 16] without a "));
}

TEST(PipelineErrors, ARankThatLeavesIsNamed) {
  const auto errors = messages_of_ranks(3, [&](const comm::Group& group) {
    Pipeline stages = make_pipeline(tensor::gpt_task(), {}, one_forward_one_backward(3, 3), group);
    step_of(stages);
    if (group.rank() == 2) return;
    step_of(stages);
  });
  EXPECT_EQ(errors[2], "no error");
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("failed in "));
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("send/receive"));
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("Rank 2 "));
  }
}

}  // namespace
}  // namespace bellows::parallel::testing::stages
