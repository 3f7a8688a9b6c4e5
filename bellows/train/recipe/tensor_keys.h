#pragma once

#include <string>

#include "bellows/parallel/tensor/tensor_plan.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Returns the number of ranks that divide each layer: the axis `tensor` of the key `mesh`, or 1.
int tensor_ranks(const Recipe& recipe);

/// Parses the key `tensor_plan`, such as "*.query: column, *.output: row". A style is column, row or vocabulary. It can
/// be followed by `transposed`, and by `fused=3` for a weight that combines three layers.
/// Returns: an empty plan for "auto"
/// Throws:  c10::ValueError if the text has another form or a style is unknown (the message suggests one)
parallel::TensorPlan parse_tensor_plan(const std::string& text);
/// Returns the text from which parse_tensor_plan() reads the plan, with quoted patterns.
std::string tensor_plan_text(const parallel::TensorPlan& plan);

/// Checks the keys of tensor parallelism, and their combinations with other keys.
/// Params: where – name of the text in messages, such as a path
/// Throws: c10::ValueError if a combination is not supported; the message says what to change
void check_tensor_keys(const Recipe& recipe, const std::string& where);

}  // namespace bellows::train
