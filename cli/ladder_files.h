#pragma once

#include <string>

#include "bellows/ladder/ladder.h"
#include "bellows/train/recipe/recipe.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

/// Returns the recipe that the command line describes.
/// Throws: UsageError if the recipe has no dataset. Also throws like check_usable()
train::Recipe ladder_recipe(const LadderArguments& arguments);

/// The contents of the output files of a ladder.
struct LadderFiles {
  std::string json, html;
  std::string recipe;  ///< YAML of the resulting recipe; "" if there is none
};
/// Writes the files that the command line requests, and prints their names.
void write_ladder_files(Terminal& terminal, const LadderArguments& arguments, const LadderFiles& files);

/// Implements `bellows ladder --inference`. Returns the exit code.
/// Throws: UsageError if options contradict each other
int run_ladder_inference(const LadderArguments& arguments);

/// Prints the processor and the version of libtorch.
void print_machine(Terminal& terminal);

/// Implements `bellows ladder --ranks` and `bellows ladder --compare`. Returns the exit code.
/// Throws: UsageError if options contradict each other
int run_ladder_comparison(const LadderArguments& arguments);

/// Returns the options of a ladder that trains.
train::LadderOptions ladder_options(const LadderArguments& arguments, const train::Recipe& recipe);

/// Implements `bellows ladder --memory-target`. Returns the exit code.
int run_ladder_target(const LadderArguments& arguments);

}  // namespace bellows::cli
