// Loops on several ranks: one of the caller's own against one process, and one in which the loss throws.
#include <gmock/gmock.h>

#include <ATen/ops/cross_entropy_loss.h>

#include <optional>

#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "tests/train/ranks_jobs.h"

namespace bellows::train {

namespace {

using parallel::testing::run_ranks;
using ::testing::HasSubstr;

/// README's loop for several processes over two epochs of 77 points in tens: the last batch of each has 7.
std::vector<at::Tensor> plain_loop(Job job, const comm::Group* group, int stage) {
  data::Dataset data = job.train;
  if (group) data = data.distributed(group->rank(), group->size(), /*global_batch=*/true);
  std::shared_ptr<torch::optim::Optimizer> optimizer = job.optimizers.front();
  std::optional<parallel::DistributedDataParallel> ddp;
  if (group && stage < 2) ddp.emplace(job.model, *group);
  if (group && stage > 0) optimizer = parallel::zero_optimizer(optimizer, job.model, *group, {.stage = stage});
  data::Loader loader = data.loader();
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (const data::Batch& batch : loader.epoch(epoch)) {
      const at::Tensor scores = ddp ? ddp->forward(batch["image"]) : job.model.forward(batch["image"]);
      const at::Tensor loss = at::cross_entropy_loss(scores, batch["label"]);
      optimizer->zero_grad();
      (loss * batch.loss_weight()).backward();
      optimizer->step();
    }
  }
  return copies_of(job.model);
}

TEST(TrainRanks, APlainLoopGivesWhatOneProcessGives) {
  const std::vector<at::Tensor> alone = plain_loop(ranks_job(ranks_recipe()), nullptr, 0);
  for (const int stage : {0, 1, 2}) {
    for (const int ranks : {2, 3, 4}) {
      SCOPED_TRACE(c10::str("ZeRO stage ", stage, " on ", ranks));
      std::vector<Job> jobs = ranks_jobs(ranks_recipe(), ranks);
      std::vector<std::vector<at::Tensor>> weights(jobs.size());
      run_ranks(ranks, [&](const comm::Group& group) {
        const auto rank = static_cast<size_t>(group.rank());
        weights[rank] = plain_loop(std::move(jobs[rank]), &group, stage);
      });
      for (const auto& own : weights) {
        for (size_t i = 0; i < alone.size(); ++i)
          EXPECT_TRUE(at::allclose(own[i], alone[i], 1e-9, 1e-12)) << "tensor " << i;
      }
    }
  }
}

/// Six steps of two batches; in the first batch of the second one the loss throws on both ranks.
std::vector<std::vector<at::Tensor>> weights_after_a_throw(const std::string& strategy) {
  Recipe recipe = ranks_recipe();
  recipe.gradient_accumulation_steps = 2;
  recipe.data_parallel = strategy;
  std::vector<Job> jobs = ranks_jobs(recipe, 2);
  std::vector<std::vector<at::Tensor>> weights(2);
  run_ranks(2, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    jobs[rank].ranks = group;
    const auto loss = jobs[rank].loss;
    int calls = 0;
    jobs[rank].loss = [&](const data::Batch& batch) {
      if (++calls == 3) throw std::runtime_error("a bad sample");
      return loss(batch);
    };
    TrainLoop loop(std::move(jobs[rank]));
    for (int step = 0; step < 6; ++step) {
      try {
        loop.step();
      } catch (const std::runtime_error& error) {
        EXPECT_THAT(error.what(), HasSubstr("a bad sample"));
      }
    }
    weights[rank] = copies_of(loop.job().model);
  });
  return weights;
}

TEST(TrainRanks, ExchangeGradientsAgainAfterALossThatThrew) {
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(strategy);
    const auto weights = weights_after_a_throw(strategy);
    ASSERT_FALSE(weights[0].empty());
    for (size_t i = 0; i < weights[0].size(); ++i)
      EXPECT_TRUE(at::equal(weights[0][i], weights[1][i])) << "tensor " << i;
  }
}

TEST(TrainRanks, NameTheRanksWhoseWeightsDiffer) {
  std::vector<Job> jobs = ranks_jobs(ranks_recipe(), 3);
  std::vector<std::vector<int>> before(3), after(3);
  run_ranks(3, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    jobs[rank].ranks = group;
    TrainLoop loop(std::move(jobs[rank]));
    loop.run_steps(2);
    before[rank] = loop.ranks().ranks_with_other_weights();
    const at::NoGradGuard no_grad;
    if (rank == 1) loop.job().model.parameters().front().view({-1})[0] += 1e-12;
    after[rank] = loop.ranks().ranks_with_other_weights();
  });
  EXPECT_THAT(before, testing::Each(testing::IsEmpty()));
  EXPECT_THAT(after, testing::Each(testing::ElementsAre(1)));
}

}  // namespace

}  // namespace bellows::train
