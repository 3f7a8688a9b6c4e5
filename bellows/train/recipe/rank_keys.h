#pragma once

#include <string>

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Checks the keys for training on several ranks, and their combinations with other keys.
/// Params: where – name of the text in messages, such as a path
/// Throws: c10::ValueError if a combination is not supported; the message says what to change
void check_rank_keys(const Recipe& recipe, const std::string& where);

}  // namespace bellows::train
