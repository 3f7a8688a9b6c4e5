#pragma once

#include "bellows/train/inference/trained_model.h"
#include "bellows/train/recipe/recipe.h"
#include "cli/options.h"

namespace bellows::cli {

/// Returns the recipe of the trained model that the options of `bellows evaluate` and `bellows predict` describe, with
/// the changes on the command line. If the recipe has no dataset, --data describes the classes.
/// Throws: UsageError if options contradict each other. c10::Error if the run folder cannot be read
train::Recipe trained_recipe(const TrainedArguments& arguments);

/// Loads the trained model.
/// Params: recipe – the result of trained_recipe()
/// Throws: c10::Error if the model cannot be loaded
train::TrainedModel load_trained_model(const TrainedArguments& arguments, const train::Recipe& recipe);

}  // namespace bellows::cli
