#pragma once

#include "cli/options.h"

namespace CLI {
class App;
}

namespace bellows::cli {

/// Adds the options for models whose weights do not fit into memory.
void add_weight_memory(CLI::App* verb, TrainedArguments& arguments);

/// Adds the options of `bellows plan` for a device map.
void add_device_map(CLI::App* verb, PlanArguments& arguments);

/// Prints where the weights of a model are in inference (`bellows plan --device-map`).
/// Params: length – length of a sample, or 0 for the model's usual length
/// Throws: UsageError if an option does not fit. c10::ValueError if the budget is too small
int run_device_map(const PlanArguments& arguments, const train::Recipe& recipe, int64_t length);

}  // namespace bellows::cli
