#pragma once

#include <memory>

#include "bellows/amp/autocast.h"
#include "bellows/amp/policy.h"
#include "bellows/data/loader/batch.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Creates the guard of the policy. None for fp32, so that a guard of the caller stays active, and none for
/// low-precision weights, for which amp::apply() has set up the model.
std::unique_ptr<amp::AutocastGuard> make_precision_guard(const amp::Policy& policy, c10::Device device);

/// Moves a batch to the recipe's device and memory format. Most loaders already deliver it there.
data::Batch placed(data::Batch batch, const Recipe& recipe, c10::Device device);

}  // namespace bellows::train
