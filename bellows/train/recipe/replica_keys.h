#pragma once

#include <cstdint>
#include <string>

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Checks the keys for replicas in one process (`data_parallel: dp`), and their combinations with other keys.
/// Params: where – name of the text in messages, such as a path
/// Throws: c10::ValueError if a combination is not supported; the message says what to change
void check_replica_keys(const Recipe& recipe, const std::string& where);

/// Throws: c10::ValueError if the recipe trains replicas in one process, but there are several ranks
void check_one_process(const Recipe& recipe, int64_t ranks);

}  // namespace bellows::train
