#pragma once

#include <string>

#include "bellows/train/recipe/recipe.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

/// Returns the recipe of the command line, with its data. Throws: UsageError if there is no data, or like
/// check_usable()
train::Recipe ladder_recipe(const LadderArguments& arguments);

/// The output files of a ladder.
struct LadderFiles {
  std::string json, html;
  std::string recipe;  ///< "" if there is none
};
/// Writes the requested files and prints their names.
void write_ladder_files(Terminal& terminal, const LadderArguments& arguments, const LadderFiles& files);

/// Implements `bellows ladder --memory-target`.
int run_ladder_target(const LadderArguments& arguments);

}  // namespace bellows::cli
