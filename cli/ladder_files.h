#pragma once

#include <string>

#include "bellows/train/recipe/recipe.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

/// The recipe that the command line names, with its data. Throws: UsageError – no data, what check_usable() says
train::Recipe ladder_recipe(const LadderArguments& arguments);

/// What a ladder leaves behind.
struct LadderFiles {
  std::string json, html;
  std::string recipe;  ///< "": there is none
};
/// Writes what the command line asks for, and says so.
void write_ladder_files(Terminal& terminal, const LadderArguments& arguments, const LadderFiles& files);

/// `bellows ladder --memory-target`.
int run_ladder_target(const LadderArguments& arguments);

}  // namespace bellows::cli
