#pragma once

#include <torch/nn.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/core/seed.h"
#include "bellows/optim/optimizers.h"
#include "bellows/train/job.h"
#include "bellows/train/step/train_loop.h"
#include "bellows/train/trainer.h"
#include "tests/parallel/ranks.h"
#include "tests/train/support.h"

namespace bellows::train {

constexpr int64_t points = 77;

inline data::Dataset ranks_points() {
  at::manual_seed(6);
  const at::Tensor x = torch::randn({points, 8}, at::kDouble);
  return data::Dataset(data::from_tensors({{"image", x}, {"label", x.slice(1, 0, 3).argmax(1)}}));
}

inline Job ranks_job(const Recipe& recipe) {
  seed_everything(3);
  torch::nn::Sequential net(torch::nn::Linear(8, 15), torch::nn::Tanh(), torch::nn::Linear(15, 3));
  if (recipe.sync_batch_norm) net->push_back(torch::nn::BatchNorm1d(3));
  net->to(at::kDouble);
  const Model model = Model::of(net, "net");
  auto optimizer = std::make_shared<optim::AdamW>(model.parameters(), optim::AdamWOptions{.lr = recipe.lr});
  const data::Dataset data = ranks_points().batch(recipe.batch_size).threads(0);
  return Job{recipe, model, {optimizer}, cross_entropy_loss(model), data.shuffle(2), data};
}

/// One job for each rank. They are made one after the other, because ranks in threads share the generators.
inline std::vector<Job> jobs_for(
    int ranks, const Recipe& recipe,
    const std::function<Job(const Recipe&)>& make = [](const Recipe& own) { return make_job(own); }) {
  std::vector<Job> jobs;
  jobs.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) jobs.push_back(make(recipe));
  return jobs;
}

inline std::vector<Job> ranks_jobs(const Recipe& recipe, int ranks) {
  return jobs_for(ranks, recipe, ranks_job);
}

inline Recipe ranks_recipe() {
  Recipe recipe;
  recipe.batch_size = 10;  // 77 points: the last batch has 7; four ranks share 10 as 2, 3, 2, 3
  recipe.lr = 0.01;
  return recipe;
}

/// Trains the job, on one rank of a group or in one process.
/// Params: group      – null: one process
///         stop_after – step at which the rank asks for a stop; -1: none
inline FitResult fit_rank(const Recipe& recipe, Job job, const comm::Group* group, int64_t stop_after, bool resume,
                          bool accept_changes = false) {
  Callbacks callbacks;
  Trainer* self = nullptr;
  callbacks.on_step = [&](const TrainLoop& loop) {
    if (loop.step_count() == stop_after) self->request_stop();
  };
  Trainer trainer(recipe, callbacks);
  self = &trainer;
  trainer.resume(resume);
  trainer.accept_changes(accept_changes);
  if (group) trainer.set_process_group(*group);
  return trainer.fit(std::move(job));
}

/// Trains one job per rank, on ranks in threads of this process. Returns the result of rank 0.
/// Params: stop_after – step at which rank 0 asks for a stop; -1: none
inline FitResult fit_on_ranks(const Recipe& recipe, std::vector<Job> jobs, int64_t stop_after, bool resume,
                              bool accept_changes = false) {
  FitResult result;
  parallel::testing::run_ranks(static_cast<int>(jobs.size()), [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    const int64_t stop = group.rank() == 0 ? stop_after : -1;
    const FitResult own = fit_rank(recipe, std::move(job), &group, stop, resume, accept_changes);
    if (group.rank() == 0) result = own;
  });
  return result;
}

/// Trains one job per rank, on ranks in threads of this process. Returns the error, or "" if there is none.
inline std::string error_of_jobs(std::vector<Job> jobs, int64_t steps = 0) {
  return error_of([&] {
    parallel::testing::run_ranks(static_cast<int>(jobs.size()), [&](const comm::Group& group) {
      Job& job = jobs[static_cast<size_t>(group.rank())];
      job.ranks = group;
      TrainLoop(std::move(job)).run_steps(steps);
    });
  });
}

/// Runs the recipe on two ranks in threads of this process. Returns the losses of each rank.
inline std::vector<std::vector<double>> losses_of_two_ranks(const Recipe& recipe, int64_t steps) {
  std::vector<Job> jobs = jobs_for(2, recipe);
  std::vector<std::vector<double>> losses(2);
  parallel::testing::run_ranks(2, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    jobs[rank].ranks = group;
    TrainLoop loop(std::move(jobs[rank]));
    loop.run_steps(steps);
    losses[rank] = loop.take_losses();
  });
  return losses;
}

}  // namespace bellows::train
