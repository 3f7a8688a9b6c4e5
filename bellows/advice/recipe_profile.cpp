#include "bellows/advice/recipe_profile.h"

#include <ATen/ops/scalar_tensor.h>

#include <utility>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/system/stop.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

namespace {

/// Whether all ranks have compiled their code. A step needs all ranks, so they must agree.
bool all_compiled(TrainLoop& loop) {
  const bool compiled = loop.is_compiled();
  const comm::Group* const ranks = loop.ranks().group();
  return ranks ? comm::all_reduce(at::scalar_tensor(compiled ? 1 : 0), *ranks, comm::Reduce::min).item<double>() > 0
               : compiled;
}

}  // namespace

void settle(TrainLoop& loop) {
  if (loop.job().recipe.compile == "none") return;
  constexpr int64_t most_steps = 200;
  for (int64_t step = 0; step < 4 || (!all_compiled(loop) && step < most_steps); ++step) {
    throw_if_stopped("compiling steps");
    loop.run_steps(1);
  }
}

Recipe without_output(Recipe recipe) {
  recipe.batch_size_start = recipe.image_size_start = 0;
  recipe.growth_epochs = 0;
  recipe.run_folder.clear();
  recipe.trace_steps.clear();
  recipe.sample_stats = false;
  return recipe;
}

RecipeProfile profile_job(Job job, const RecipeProfileOptions& options) {
  TORCH_CHECK_VALUE(job.recipe.device.starts_with("cpu"), "profile: expected device: cpu, got ", job.recipe.device,
                    ". The times of operators are measured on the host. On an accelerator, record a trace with "
                    "`trace_steps` instead.");
  job.recipe = without_output(std::move(job.recipe));
  TrainLoop loop(std::move(job));
  const comm::Group* const ranks = loop.ranks().group();
  settle(loop);
  RecipeProfile result{.recipe = loop.job().recipe, .machine = this_machine()};
  const Model& model = loop.job().model;
  result.parameters = static_cast<int64_t>(model.parameters().size());
  std::optional<comm::CallLog> calls;
  if (ranks) calls.emplace(*ranks);
  double last_start_us = 0;  // if a step is traced, it is the last one
  const auto step = [&] {
    throw_if_stopped("profiling steps");
    last_start_us = trace_now_us();
    loop.run_steps(1);
  };
  result.step = inspect::profile(step, {.warm_up_steps = options.warm_up_steps,
                                        .steps = options.steps,
                                        .model = model,
                                        .peaks = options.peaks,
                                        .trace = options.trace});
  if (ranks) {
    const std::vector<comm::RecordedCall> recorded = calls->calls();  // without those that gather the profiles
    if (options.trace) add_calls(*options.trace, recorded, last_start_us);
    result.ranks = gather_ranks(*ranks, result.step, recorded);
  }
  result.loader = loop.loader_report();
  result.recipe.batch_size = loop.batch_size();
  result.batch_size = loop.batch_size() * loop.job().recipe.gradient_accumulation_steps;
  return result;
}

RecipeProfile profile_recipe(Recipe recipe, const RecipeProfileOptions& options,
                             const std::optional<comm::Group>& ranks) {
  Job job = make_job(with_total_batch(without_output(std::move(recipe)), ranks ? ranks->size() : 1));
  if (ranks) job.ranks = ranks;
  return profile_job(std::move(job), options);
}

}  // namespace bellows::train
