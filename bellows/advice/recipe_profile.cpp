#include "bellows/advice/recipe_profile.h"

#include <utility>

#include "bellows/system/stop.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

void settle(TrainLoop& loop) {
  if (loop.job().recipe.compile == "none") return;
  constexpr int64_t most_steps = 200;
  for (int64_t step = 0; step < 4 || (!loop.is_compiled() && step < most_steps); ++step) {
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
  settle(loop);
  RecipeProfile result{.recipe = loop.job().recipe, .machine = this_machine()};
  const Model& model = loop.job().model;
  result.parameters = static_cast<int64_t>(model.parameters().size());
  const auto step = [&loop] {
    throw_if_stopped("profiling steps");
    loop.run_steps(1);
  };
  result.step = inspect::profile(step, {.warm_up_steps = options.warm_up_steps,
                                        .steps = options.steps,
                                        .model = model,
                                        .peaks = options.peaks,
                                        .trace = options.trace});
  result.loader = loop.loader_report();
  result.recipe.batch_size = loop.batch_size();
  result.batch_size = loop.batch_size() * loop.job().recipe.gradient_accumulation_steps;
  return result;
}

RecipeProfile profile_recipe(Recipe recipe, const RecipeProfileOptions& options) {
  return profile_job(make_job(with_total_batch(without_output(std::move(recipe)), 1)), options);
}

}  // namespace bellows::train
