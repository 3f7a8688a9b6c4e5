#pragma once

#include <string>

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Reads a recipe file that contains only some settings, and returns `base` with these settings. Several recipes can so
/// share their other settings.
/// Throws: like Recipe::load()
Recipe load_over(const Recipe& base, const std::string& path);

}  // namespace bellows::train
