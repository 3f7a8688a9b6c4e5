#include "cli/trained_options.h"

#include "bellows/core/error.h"

namespace bellows::cli {

namespace {

using train::Recipe;

void check_model_options(const TrainedArguments& arguments) {
  if (!arguments.run.empty()) {
    for (const auto& [name, value] :
         {std::pair{"--recipe", &arguments.recipe}, {"--model", &arguments.model}, {"--weights", &arguments.weights}}) {
      if (!value->empty())
        throw UsageError(std::string(name) +
                         " cannot be combined with --run, which provides the recipe and the weights.");
    }
    return;
  }
  if (arguments.recipe.empty() && arguments.model.empty())
    throw UsageError("expected a trained model. Pass --run, or --recipe (or --model) together with --weights.");
}

void set_dtype(Recipe& recipe, const std::string& dtype) {
  if (dtype.empty()) return;
  recipe.precision = dtype;
  recipe.amp_level = dtype == "bf16" ? "O2" : "O1";  // bf16: weights, too, except those of norm layers
}

}  // namespace

Recipe trained_recipe(const TrainedArguments& arguments) {
  check_model_options(arguments);
  Recipe recipe;
  if (!arguments.run.empty()) {
    recipe = train::recipe_of_run(arguments.run);
  } else if (!arguments.recipe.empty()) {
    recipe = load_recipe(arguments.recipe);
  }
  apply_overrides(recipe, {.data = "", .model = arguments.model, .set = arguments.set});
  if (recipe.data.empty()) recipe.data = arguments.data;
  set_dtype(recipe, arguments.dtype);
  check_usable(recipe);
  return recipe;
}

train::TrainedModel load_trained_model(const TrainedArguments& arguments, const Recipe& recipe) {
  return arguments.run.empty() ? train::load_trained(recipe, arguments.weights)
                               : train::load_run(arguments.run, recipe);
}

}  // namespace bellows::cli
