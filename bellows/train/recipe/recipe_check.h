#pragma once

#include <string>

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Checks what must hold between several members of a recipe. Params: where – for messages: a path
/// Throws: c10::ValueError – keys, values, what goes together
void check_together(const Recipe& recipe, const std::string& where);

/// What of the recipe needs gradients that outlive backward: "clip_norm = 1 needs …"; "": nothing.
std::string step_in_backward_conflict(const Recipe& recipe);

}  // namespace bellows::train
