// A job on several ranks, each in its own process.
#include <ATen/Parallel.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "bellows/comm/collectives.h"
#include "bellows/ladder/job.h"
#include "bellows/ladder/process.h"
#include "bellows/ladder/rank_processes.h"
#include "bellows/system/stop.h"

namespace bellows::train {

namespace {

using ::testing::HasSubstr;

/// Adds up the numbers of the ranks. `trouble` is called in each run on each rank.
class SumJob final : public LadderJob {
 public:
  SumJob(comm::Group group, std::function<void(int rank)> trouble)
      : group_(std::move(group)), trouble_(std::move(trouble)) {}
  int64_t run_steps(int64_t n) override {
    if (trouble_) trouble_(group_.rank());
    return comm::all_reduce(at::scalar_tensor(n * (group_.rank() + 1)), group_).item<int64_t>();
  }
  int64_t steps_per_epoch() const override { return at::get_num_threads(); }
  int64_t samples_per_epoch() const override { return getpid(); }
  double evaluate() override { return group_.rank() + 0.5; }
  int64_t take_peak_bytes() override { return 100 + group_.rank(); }
  std::string bottleneck() override { return "rank " + std::to_string(group_.rank()); }
  int64_t sent_bytes() override { return 10 * group_.rank(); }

 private:
  comm::Group group_;
  std::function<void(int rank)> trouble_;
};

/// A job whose steps take very long.
class SleepingJob final : public LadderJob {
 public:
  int64_t run_steps(int64_t) override { return sleep(1000); }
  int64_t steps_per_epoch() const override { return 5; }
  int64_t samples_per_epoch() const override { return 5; }
  double evaluate() override { return 0; }
};

std::unique_ptr<LadderJob> sum_job(int ranks, int64_t threads = 1, std::function<void(int rank)> trouble = {}) {
  return on_ranks([trouble](const comm::Group& group) { return std::make_unique<SumJob>(group, trouble); }, ranks,
                  threads);
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

Recipe digits_recipe() {
  Recipe recipe;
  recipe.data = BELLOWS_SOURCE_DIR "/data/digits";
  recipe.model = "mlp";
  recipe.batch_size = 30;
  recipe.optimizer = "adamw";
  recipe.lr = 1e-3;
  return recipe;
}

}  // namespace

TEST(RankProcesses, RunTogetherAndReturnTheResultsOfRank0) {
  const auto job = sum_job(3, 2);
  EXPECT_EQ(job->run_steps(10), 60);
  EXPECT_EQ(job->run_steps(1), 6);
  EXPECT_EQ(job->steps_per_epoch(), 2) << "threads of a rank";
  EXPECT_NE(job->samples_per_epoch(), getpid()) << "another process";
  EXPECT_EQ(job->evaluate(), 0.5);
  EXPECT_EQ(job->bottleneck(), "rank 0");
  EXPECT_EQ(job->take_peak_bytes(), 102) << "of the rank with the highest peak";
  EXPECT_EQ(job->sent_bytes(), 20);
}

TEST(RankProcesses, TwoGroupsOfRanksAlternate) {
  const auto two = sum_job(2), four = sum_job(4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(two->run_steps(1), 3);
    EXPECT_EQ(four->run_steps(1), 10);
  }
}

TEST(RankProcesses, AnErrorOnOneRankEndsAll) {
  const auto job = sum_job(3, 1, [](int rank) { TORCH_CHECK_VALUE(rank != 1, "bad sample on rank 1"); });
  EXPECT_THAT(message_of([&] { job->run_steps(1); }), HasSubstr("bad sample on rank 1"))
      << "the others only wait for it";
  EXPECT_THAT(message_of([&] { job->run_steps(1); }), HasSubstr("have ended after an error"));
  const auto same = sum_job(2, 1, [](int) { TORCH_CHECK_VALUE(false, "bad sample everywhere"); });
  EXPECT_THROW(same->run_steps(1), c10::ValueError);
}

TEST(RankProcesses, AKilledRankIsNamed) {
  const auto job = sum_job(3, 1, [](int rank) {
    if (rank == 2) kill(getpid(), SIGKILL);
  });
  EXPECT_THAT(message_of([&] { job->run_steps(1); }), HasSubstr("rank 2 of 3 ended unexpectedly"));
}

TEST(RankProcesses, AnErrorOfTheConstructorIsPassedOn) {
  Recipe recipe = digits_recipe();
  recipe.data_parallel = "dp";
  EXPECT_THAT(message_of([&] { ladder_job_on_ranks(recipe, 1, 2, 1); }), HasSubstr("replicas in one process"));
  recipe.device = "cuda";
  EXPECT_THAT(message_of([&] { ladder_job_on_ranks(recipe, 1, 2, 1); }), HasSubstr("only on the CPU"));
}

TEST(RankProcesses, AStoppedQuestionEndsTheProcesses) {
  const auto ranks = on_ranks([](const comm::Group&) { return std::make_unique<SleepingJob>(); }, 2, 1);
  const auto alone = in_own_process([] { return std::make_unique<SleepingJob>(); });
  EXPECT_EQ(alone->steps_per_epoch(), 5);
  request_stop();
  EXPECT_THROW(ranks->run_steps(1), Stopped);
  EXPECT_THROW(alone->run_steps(1), Stopped);
  clear_stop();
  EXPECT_THAT(message_of([&] { ranks->steps_per_epoch(); }), HasSubstr("have ended after an error"));
  EXPECT_THAT(message_of([&] { alone->steps_per_epoch(); }), HasSubstr("ended unexpectedly"));
}

TEST(RankProcesses, NeedAProcessWithOneThread) {
  std::thread other([] { sleep(1); });
  EXPECT_THAT(message_of([&] { sum_job(2); }), HasSubstr("has several threads"));
  other.join();
}

TEST(RankProcesses, TrainARecipeAsOneProcessDoes) {
  const auto alone = ladder_job_in_own_process(digits_recipe(), 3);
  const auto ranks = ladder_job_on_ranks(digits_recipe(), 3, 2, 1);
  EXPECT_EQ(ranks->steps_per_epoch(), alone->steps_per_epoch());
  EXPECT_EQ(ranks->samples_per_epoch(), alone->samples_per_epoch());
  const int64_t steps = alone->steps_per_epoch() + 5;
  EXPECT_EQ(ranks->run_steps(steps), alone->run_steps(steps)) << "samples of all ranks";
  EXPECT_NEAR(ranks->evaluate(), alone->evaluate(), 0.02);
  EXPECT_EQ(alone->sent_bytes(), -1);
  EXPECT_TRUE(ranks->settle());
}

TEST(RankProcesses, CountBytesAndMemoryOfARank) {
  const auto sent_of = [](LadderJob& job) {
    job.run_steps(3);  // DDP creates its buckets again after the first step
    const int64_t before = job.sent_bytes();
    job.run_steps(4);
    return static_cast<double>(job.sent_bytes() - before) / 4;
  };
  Recipe recipe = digits_recipe();
  const auto ddp = ladder_job_on_ranks(recipe, 3, 2, 1);
  const double ddp_sent = sent_of(*ddp);
  EXPECT_GT(ddp_sent, 0);
  recipe.data_parallel = "zero1";
  const auto zero1 = ladder_job_on_ranks(recipe, 3, 2, 1);
  EXPECT_NEAR(sent_of(*zero1) / ddp_sent, 1.5, 0.02) << "three halves of the bytes of DDP";
  EXPECT_LT(zero1->take_peak_bytes(), ddp->take_peak_bytes()) << "half of AdamW's state";
  recipe.data_parallel = "dp";
  recipe.replicas = 2;
  const auto replicas = ladder_job_in_own_process(recipe, 3);
  EXPECT_NEAR(sent_of(*replicas) / ddp_sent, 1, 0.02) << "the gradients of one replica, once";
}

}  // namespace bellows::train
