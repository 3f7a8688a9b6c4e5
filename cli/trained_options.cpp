#include "cli/trained_options.h"

#include "bellows/core/error.h"

namespace bellows::cli {

namespace {

using train::Recipe;

void check_options(const TrainedArguments& arguments) {
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

train::TrainedModel load_trained_model(const TrainedArguments& arguments) {
  check_options(arguments);
  const bool has_run = !arguments.run.empty();
  Recipe recipe = has_run                    ? train::recipe_of_run(arguments.run)
                  : arguments.recipe.empty() ? Recipe{}
                                             : load_recipe(arguments.recipe);
  apply_overrides(recipe,
                  {.data = recipe.data.empty() ? arguments.data : "", .model = arguments.model, .set = arguments.set});
  set_dtype(recipe, arguments.dtype);
  check_usable(recipe);
  return has_run ? train::load_run(arguments.run, recipe) : train::load_trained(recipe, arguments.weights);
}

}  // namespace bellows::cli
