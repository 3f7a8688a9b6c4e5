#pragma once

#include <cstdint>
#include <optional>

#include "bellows/advice/rank_profile.h"
#include "bellows/data/loader/report.h"
#include "bellows/inspect/profile/profile.h"
#include "bellows/system/machine.h"
#include "bellows/train/job.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

class TrainLoop;

/// The profile of a recipe's training step, with the facts that advice needs. With several ranks, it is that of this rank.
struct RecipeProfile {
  Recipe recipe{};
  Machine machine{};
  inspect::StepProfile step{};
  data::LoaderReport loader{};
  std::optional<RanksProfile> ranks{};  ///< of all ranks, if there are several
  int64_t batch_size = 0;               ///< samples of a step, of all ranks together
  int64_t parameters = 0;               ///< number of parameter tensors

  double samples_per_s() const { return static_cast<double>(batch_size) / step.step_s; }
};

struct RecipeProfileOptions {
  int64_t warm_up_steps = 3;
  int64_t steps = 10;                            ///< number of timed steps
  std::optional<inspect::MachinePeaks> peaks{};  ///< if not set, they are measured
  /// If not null, another step is recorded as a Chrome trace. All ranks must set it, or none. It gets the events of this
  /// rank only, see gather_traces().
  TraceWriter* trace = nullptr;
};

/// With `compile`, trains until compilation has finished, but at most 200 steps. Otherwise, does nothing.
void settle(TrainLoop& loop);
/// Returns the recipe with its full batch size and image size from the first step on, and without output files.
Recipe without_output(Recipe recipe);

/// Runs some training steps of the recipe at the full batch and image size, and profiles them. It writes no files,
/// except for a missing `teacher_cache`.
/// Params: ranks – the ranks that train together, each of which calls this function; empty if there is only this process
/// Cost:   see inspect::profile()
/// Throws: like make_job() and TrainLoop::step(); c10::ValueError if the device is not a CPU, because the times of
///         operators are measured on the host
RecipeProfile profile_recipe(Recipe recipe, const RecipeProfileOptions& options = {},
                             const std::optional<comm::Group>& ranks = {});
/// The same for your own job, with the ranks of the job. About 20 training steps change its model, optimizers and generators.
RecipeProfile profile_job(Job job, const RecipeProfileOptions& options = {});

}  // namespace bellows::train
