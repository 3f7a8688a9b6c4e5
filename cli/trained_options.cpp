#include "cli/trained_options.h"

#include "bellows/core/error.h"
#include "bellows/io/network/hub.h"
#include "bellows/train/inference/streamed_model.h"

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
  const bool has_config = io::is_hub_address(arguments.weights);  // its config.json chooses the model
  if (arguments.recipe.empty() && arguments.model.empty() && !has_config)
    throw UsageError("expected a trained model. Pass --run, or --recipe (or --model) together with --weights.");
}

void set_dtype(Recipe& recipe, const std::string& dtype) {
  if (dtype.empty()) return;
  recipe.precision = dtype;
  recipe.amp_level = dtype == "bf16" ? "O2" : "O1";  // bf16: weights, too, except those of norm layers
}

/// Throws: UsageError if the options for weights that do not fit into memory contradict others
void check_weight_memory(const TrainedArguments& arguments) {
  const bool folder = !arguments.offload_folder.empty();
  if (arguments.weight_memory == 0) {
    if (folder) throw UsageError("--offload-folder is only used with --weight-memory. Pass --weight-memory, too.");
    return;
  }
  if (arguments.compile)
    throw UsageError(
        "--compile cannot be combined with --weight-memory, because compiled functions keep all weights in memory.");
  const bool other_file = !arguments.weights.empty() && !arguments.weights.ends_with(".safetensors");
  if (!folder && (!arguments.run.empty() || other_file))
    throw UsageError(
        "--weight-memory reads weights from a safetensors file. Pass --offload-folder, in which such a file is written "
        "once, or --weights with a safetensors file.");
}

train::TrainedModel load_streamed_model(const TrainedArguments& arguments, const Recipe& recipe) {
  const train::WeightMemory memory{.bytes = static_cast<int64_t>(arguments.weight_memory),
                                   .folder = arguments.offload_folder};
  return (arguments.run.empty() ? train::load_streamed(recipe, arguments.weights, memory)
                                : train::load_streamed_run(arguments.run, recipe, memory))
      .trained;
}

}  // namespace

Recipe trained_recipe(const TrainedArguments& arguments) {
  check_model_options(arguments);
  check_weight_memory(arguments);
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
  if (arguments.weight_memory > 0) return load_streamed_model(arguments, recipe);
  return arguments.run.empty() ? train::load_trained(recipe, arguments.weights)
                               : train::load_run(arguments.run, recipe);
}

}  // namespace bellows::cli
