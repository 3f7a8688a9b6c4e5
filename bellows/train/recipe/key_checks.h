#pragma once

#include <string>

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Checks combinations of recipe keys.
/// Params: where – name of the text in messages, such as a path
/// Throws: c10::ValueError if a combination is not supported; the message says what to change
void check_keys_together(const Recipe& recipe, const std::string& where);

}  // namespace bellows::train
