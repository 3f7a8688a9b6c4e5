#include "bellows/advice/batch_sweep.h"

#include "bellows/advice/recipe_profile.h"
#include "bellows/inspect/profile/machine_peaks.h"
#include "bellows/system/stop.h"
#include "bellows/train/job.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

namespace {

constexpr double least_growth = 1.05;
constexpr int64_t largest_factor = 8;
constexpr int64_t untimed_steps = 2;

double median_step_seconds(const Recipe& recipe, int64_t steps) {
  TrainLoop loop(make_job(recipe));
  settle(loop);
  const auto step = [&loop] {
    throw_if_stopped("measuring batch sizes");
    loop.run_steps(1);
  };
  return inspect::median_call_seconds(step, steps, untimed_steps) /
         static_cast<double>(recipe.gradient_accumulation_steps);
}

}  // namespace

int64_t saturating_batch(const std::vector<BatchThroughput>& sweep) {
  for (size_t i = 1; i < sweep.size(); ++i) {
    if (sweep[i].samples_per_s() < least_growth * sweep[i - 1].samples_per_s()) return sweep[i - 1].batch_size;
  }
  return 0;
}

std::vector<BatchThroughput> sweep_batches(const Recipe& recipe, int64_t steps,
                                           const std::function<double(const Recipe&)>& time_steps) {
  std::vector<BatchThroughput> sweep;
  sweep.reserve(4);
  for (int64_t factor = 1; factor <= largest_factor && saturating_batch(sweep) == 0; factor *= 2) {
    Recipe larger = with_total_batch(without_output(recipe), 1);
    larger.batch_size *= factor;
    sweep.push_back({larger.batch_size, time_steps ? time_steps(larger) : median_step_seconds(larger, steps)});
  }
  return sweep;
}

}  // namespace bellows::train
