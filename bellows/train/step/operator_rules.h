#pragma once

#include <functional>

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Runs `body` by the recipe's keys `deterministic` and `require_seed`. If both are off, it only calls `body`.
/// Throws:  RecipeError if `deterministic` is true and an operator has no deterministic kernel; the message names the
///          operator. c10::ValueError if `require_seed` is true and an operator draws random numbers before a seed is
///          set. Exceptions of `body` are passed on
/// Cost:    see inspect::DeterministicGuard and inspect::RandomGuard
/// Threads: `deterministic` applies to all threads of the process while `body` runs
void with_operator_rules(const Recipe& recipe, const std::function<void()>& body);

}  // namespace bellows::train
