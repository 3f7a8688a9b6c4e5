#pragma once

#include <memory>

#include "bellows/ladder/ladder.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Returns `recipe` with all settings off that techniques turn on: the start of the ladder.
Recipe without_techniques(Recipe recipe);

/// Returns `recipe` with full batch and image size from the first step on, and without output files.
Recipe at_full_size(Recipe recipe);

/// A run of a recipe on Bellows' step engine. Its peak is that of the recipe's device, above the memory that this
/// process used when the job was created.
/// Throws: like make_job(); c10::ValueError if there is no held-out data
std::unique_ptr<LadderJob> make_ladder_job(Recipe recipe, uint64_t seed);

/// Implements LadderJob::take_peak_bytes(): the peak of the CPU allocator's live bytes in this process since the last
/// call.
int64_t take_cpu_peak_bytes();

}  // namespace bellows::train
