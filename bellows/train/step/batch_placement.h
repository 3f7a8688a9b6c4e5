#pragma once

#include <memory>

#include "bellows/amp/autocast.h"
#include "bellows/amp/policy.h"
#include "bellows/data/loader/batch.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Creates the autocast guard of the policy. Returns null in two cases:
/// - The policy has no autocast, as for fp32. An autocast guard of the caller then stays active.
/// - The model has low-precision weights, because amp::apply() has already prepared it.
std::unique_ptr<amp::AutocastGuard> make_precision_guard(const amp::Policy& policy, c10::Device device);

/// Moves a batch to the recipe's device and memory format. Most loaders already deliver batches on this device and in
/// this format.
data::Batch placed(data::Batch batch, const Recipe& recipe, c10::Device device);

}  // namespace bellows::train
