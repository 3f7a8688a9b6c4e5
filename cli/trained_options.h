#pragma once

#include "bellows/train/inference/trained_model.h"
#include "cli/options.h"

namespace bellows::cli {

/// Loads the model that the options of `bellows evaluate` and `bellows predict` describe.
/// Throws: UsageError if options contradict each other, or there are no weights. c10::Error if the model cannot be loaded
train::TrainedModel load_trained_model(const TrainedArguments& arguments);

}  // namespace bellows::cli
