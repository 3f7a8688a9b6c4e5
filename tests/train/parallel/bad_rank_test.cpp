// Bad data on one rank of a run with sharded gradients or parameters.
#include <gmock/gmock.h>

#include <limits>

#include "tests/train/ranks_jobs.h"

namespace bellows::train {

namespace {

/// The loss of rank 1 is NaN in the third of four steps. Returns the message of each of two ranks.
std::vector<std::string> messages_of_nan(const std::string& strategy, bool in_backward = false) {
  Recipe recipe = ranks_recipe();
  recipe.data_parallel = strategy;
  recipe.optimizer_in_backward = in_backward;
  std::vector<Job> jobs = ranks_jobs(recipe, 2);
  jobs[1].loss = [loss = jobs[1].loss, step = 0](const data::Batch& batch) mutable {
    StepOutput output = loss(batch);
    if (++step == 3) output.loss = output.loss * std::numeric_limits<double>::quiet_NaN();
    return output;
  };
  return parallel::testing::messages_of_ranks(2, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    job.ranks = group;
    TrainLoop(std::move(job)).run_steps(4);
  });
}

}  // namespace

TEST(BadRank, NaNIsReportedByItsRankAndTheOthersNameTheRank) {
  for (const char* strategy : {"zero2", "zero3"}) {
    SCOPED_TRACE(strategy);
    const std::vector<std::string> messages = messages_of_nan(strategy);
    EXPECT_THAT(messages[1], ::testing::StartsWith("train: the loss became NaN at step 3 (epoch 1, batch 2, "));
    EXPECT_THAT(messages[0], ::testing::ContainsRegex("failed on rank 0, group world[^:]*: Rank 1 \\("));
  }
}

TEST(BadRank, NaNIsReportedIfBackwardUpdatesTheWeights) {
  for (const char* strategy : {"ddp", "zero2"}) {
    SCOPED_TRACE(strategy);
    const std::vector<std::string> messages = messages_of_nan(strategy, /*in_backward=*/true);
    EXPECT_THAT(messages[1], ::testing::StartsWith("train: the loss became NaN at step 3 (epoch 1, batch 2, "));
    EXPECT_THAT(messages[1], ::testing::HasSubstr("Without optimizer_in_backward, the error also reports the cause."));
    EXPECT_THAT(messages[0], ::testing::ContainsRegex("failed on rank 0, group [^:]*: Rank 1 \\("));
  }
}

}  // namespace bellows::train
