#include <filesystem>
#include <utility>

#include "bellows/comm/world.h"
#include "bellows/core/device.h"
#include "bellows/system/stop.h"
#include "bellows/train/resolved_job.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/train_session.h"
#include "cli/usable.h"

namespace bellows::cli {

namespace {

using train::FitResult;
using train::Recipe;

std::string recipe_in(const std::string& folder) {
  return folder + "/recipe.yaml";
}

/// The recipe of the command line. Without --recipe, a resumed run uses the recipe in its folder.
Recipe recipe_of(const TrainArguments& arguments) {
  if (arguments.resume && arguments.out.empty())
    throw UsageError("--resume needs --out with the folder of the run to resume.");
  std::string path = arguments.recipe;
  std::error_code unreadable;
  if (path.empty() && arguments.resume && std::filesystem::exists(recipe_in(arguments.out), unreadable))
    path = recipe_in(arguments.out);
  Recipe recipe = path.empty() ? Recipe{} : load_recipe(path);
  apply_overrides(recipe, {.data = arguments.data, .model = arguments.model, .set = arguments.set});
  if (!arguments.out.empty()) recipe.run_folder = arguments.out;
  if (recipe.data.empty()) throw UsageError("train needs a dataset. Pass --data, or set the key data in the recipe.");
  check_usable(recipe);
  return recipe;
}

/// The command that resumes a stopped job with as many ranks, under the same launcher.
std::string resume_hint(const std::string& folder, const std::vector<std::string>& plugins, const World& world) {
  const auto& place = world.environment();
  std::string command = "bellows train --out " + shell_word(folder) + " --resume";
  for (const std::string& plugin : plugins) command += " --plugin " + shell_word(plugin);
  if (world.size() == 1) return "Resume with: " + command;
  if (place.launcher == "bellows launch" && place.local_world_size == world.size())
    return c10::str("Resume with: bellows launch -n ", world.size(), " -- ", command);
  return c10::str("Resume under ", place.launcher, " with ", world.size(), " ranks: ", command);
}

}  // namespace

void check_usable(const Recipe& recipe) {
  usable([&] {
    recipe.validate();
    parse_device(recipe.device);
  });
}

Recipe load_recipe(const std::string& path) {
  const Interrupt interrupt("the recipe was not read completely");  // a pipe may wait for its writer
  return usable([&] {
    const Recipe recipe = Recipe::load(path);
    throw_if_stopped("reading the recipe");
    return recipe;
  });
}

void apply_overrides(Recipe& recipe, const RecipeOverrides& overrides) {
  if (!overrides.data.empty()) recipe.data = overrides.data;
  if (!overrides.model.empty()) recipe.model = overrides.model;
  for (const std::string& item : overrides.set) usable([&] { recipe.set(item); });
  usable([&] { recipe = with_pretrained_model(std::move(recipe)); });
}

int run_train(const TrainArguments& arguments) {
  if (arguments.keys) return run_recipe_keys(arguments.json);
  Recipe recipe = recipe_of(arguments);
  check_output_file(arguments.json);
  TrainSession session(!recipe.run_folder.empty());
  const FitResult result =
      session.train(recipe, {.resume = arguments.resume, .accept_changes = arguments.accept_changes});
  const int code = session.exit_code(result);
  if (!session.is_first()) return code;
  if (arguments.json != "-")
    print_fit(recipe, result, resume_hint(recipe.run_folder, arguments.plugins, session.world()));
  write_json(arguments.json, fit_json(recipe, result));
  return code;
}

}  // namespace bellows::cli
