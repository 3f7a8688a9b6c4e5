#pragma once

#include <cstdint>
#include <string>

#include "bellows/parallel/context/context_attention.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Returns the number of ranks that divide each sequence: the axis `context` of the key `mesh`, or 1.
int context_ranks(const Recipe& recipe);
/// Returns the number of chunks into which each sequence is cut; 1 without an axis `context`. The length of a sequence
/// must be a multiple of it.
int64_t context_chunks(const Recipe& recipe);
/// Returns the method that the key `context_method` names.
parallel::ContextMethod context_method(const Recipe& recipe);

/// Checks the keys of context parallelism, and their combinations with other keys.
/// Params: where – name of the text in messages, such as a path
/// Throws: c10::ValueError if a combination is not supported; the message says what to change
void check_context_keys(const Recipe& recipe, const std::string& where);

}  // namespace bellows::train
