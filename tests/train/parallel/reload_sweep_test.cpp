// Runs that stop in the middle of epochs, and resume with another number of ranks, mesh or stage of ZeRO: 6 reloads, or
// 20 with script/test --slow.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <string>

#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/core/mutex.h"
#include "bellows/train/trainer.h"
#include "tests/support/slow_tests.h"
#include "tests/train/parallel/kill_results.h"
#include "tests/train/ranks_jobs.h"

namespace bellows::train {
namespace {

struct ReloadLayout {
  const char* strategy;
  int ranks;
  const char* mesh = "";
  bool reshard = true, over_all = false;
};

constexpr ReloadLayout reload_layouts[] = {{"ddp", 1},
                                           {"ddp", 3},
                                           {"ddp", 4},
                                           {"zero1", 2},
                                           {"zero1", 4, "{data: 2, shard: 2}"},
                                           {"zero2", 3},
                                           {"zero2", 4, "{data: 2, shard: 2}"},
                                           {"zero3", 2},
                                           {"zero3", 3, "", false},
                                           {"zero3", 4, "{data: 2, shard: 2}"},
                                           {"zero3", 4, "{data: 2, shard: 2}", true, true}};

constexpr int64_t reload_epochs = 5, steps_per_epoch = 8;

/// The samples that the ranks trained with, by their first value, in the order of the steps.
class DrawnSamples {
 public:
  void add(const at::Tensor& images) {
    const at::Tensor first = images.select(1, 0).contiguous();
    const MutexLock lock(mutex_);
    values_.insert(values_.end(), first.const_data_ptr<double>(), first.const_data_ptr<double>() + first.numel());
  }
  /// Each epoch has all samples once.
  void expect_whole_epochs() {
    const MutexLock lock(mutex_);
    ASSERT_EQ(values_.size(), static_cast<size_t>(reload_epochs * points));
    at::manual_seed(6);  // as ranks_points() does
    const at::Tensor all = std::get<0>(torch::randn({points, 8}, at::kDouble).select(1, 0).sort());
    const at::Tensor drawn = std::get<0>(torch::tensor(values_, at::kDouble).view({reload_epochs, points}).sort(1));
    for (int64_t epoch = 0; epoch < reload_epochs; ++epoch)
      EXPECT_TRUE(at::equal(drawn[epoch], all)) << "epoch " << epoch;
  }

 private:
  Mutex mutex_;
  std::vector<double> values_ BELLOWS_GUARDED_BY(mutex_);
};

Recipe reload_recipe(const ReloadLayout& layout) {
  Recipe recipe = ranks_recipe();
  recipe.epochs = reload_epochs;
  recipe.lr_schedule = "cosine";
  recipe.max_grad_norm = 0.05;
  recipe.data_parallel = layout.strategy;
  recipe.mesh = layout.mesh;
  recipe.reshard_after_forward = layout.reshard;
  recipe.shard_state_over_all = layout.over_all;
  return recipe;
}

/// Trains until step `stop_after`, or to the end if it is negative.
FitResult train_part(const Recipe& recipe, int ranks, int64_t stop_after, bool resume, DrawnSamples& drawn) {
  std::vector<Job> jobs = ranks_jobs(recipe, ranks);
  for (Job& job : jobs) {
    job.loss = [&drawn, inner = job.loss](const data::Batch& batch) {
      if (at::GradMode::is_enabled()) drawn.add(batch["image"]);
      return inner(batch);
    };
  }
  return fit_on_ranks(recipe, std::move(jobs), stop_after, resume, /*accept_changes=*/true);
}

/// By name, because the order of tensors in a sharded checkpoint depends on the number of ranks.
std::map<std::string, at::Tensor> weights_of(const FitResult& result) {
  const NamedTensors model = checkpoint::SavedCheckpoint(result.checkpoint).state().model;
  return {model.begin(), model.end()};
}

/// Tolerance: only the order of sums differs.
void expect_close_weights(const std::map<std::string, at::Tensor>& got,
                          const std::map<std::string, at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(at::allclose(got.at(name), tensor, /*rtol=*/1e-8, /*atol=*/1e-10))
        << name << " differs by " << (got.at(name) - tensor).abs().max().item<double>();
  }
}

/// One run with reloads in the middle of epochs. Returns their number.
int reload_one_run(RandomStream& random, int most, const std::map<std::string, at::Tensor>& expected) {
  const TemporaryFolder folder;
  DrawnSamples drawn;
  const auto next_layout = [&] { return reload_layouts[random.below(std::size(reload_layouts))]; };
  ReloadLayout layout = next_layout();
  constexpr int64_t all_steps = reload_epochs * steps_per_epoch;
  FitResult result;
  int reloads = 0;
  for (;; ++reloads) {
    Recipe recipe = reload_recipe(layout);
    recipe.run_folder = folder.path();
    // Several ranks agree to stop one step later.
    int64_t stop = result.steps + 1 + static_cast<int64_t>(random.below(2 * steps_per_epoch));
    while (stop % steps_per_epoch == 0 || (stop + 1) % steps_per_epoch == 0) ++stop;  // not at the end of an epoch
    const bool last = reloads == most || stop + 1 >= all_steps;
    result = train_part(recipe, layout.ranks, last ? -1 : stop, reloads > 0, drawn);
    std::printf("  %s on %d ranks %s to step %lld\n", layout.strategy, layout.ranks, layout.mesh,
                static_cast<long long>(result.steps));
    if (last || ::testing::Test::HasFailure()) break;
    EXPECT_GE(result.steps, stop);
    layout = next_layout();
  }
  EXPECT_EQ(result.steps, reload_epochs * steps_per_epoch);
  expect_close_weights(weights_of(result), expected);
  drawn.expect_whole_epochs();
  return reloads;
}

/// Set BELLOWS_KILL_SEED to have the same reloads again.
TEST(ReloadSweep, OtherRanksAndMeshesContinueTheEpoch) {
  RandomStream random(printed_kill_seed());
  const TemporaryFolder folder;
  Recipe recipe = reload_recipe({"ddp", 1});
  recipe.run_folder = folder.path();
  DrawnSamples drawn;
  const auto expected = weights_of(train_part(recipe, 1, -1, false, drawn));
  drawn.expect_whole_epochs();
  int reloads = slow_tests() ? 20 : 6;
  while (reloads > 0 && !HasFailure()) reloads -= reload_one_run(random, reloads, expected);
}

}  // namespace
}  // namespace bellows::train
