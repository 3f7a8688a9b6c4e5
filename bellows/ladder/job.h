#pragma once

#include <memory>

#include "bellows/ladder/ladder.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// `recipe` with every switch off that the techniques switch on: what the ladder starts from.
Recipe without_techniques(Recipe recipe);

/// `recipe` with the largest batches and pictures from the first step on, and no files.
Recipe at_full_size(Recipe recipe);

/// The run that a recipe describes, on Bellows' own step engine. Its peak is that of the recipe's device, above what this
/// process held when the job was made.
/// Throws: as make_job; c10::ValueError – no held-out data
std::unique_ptr<LadderJob> make_ladder_job(Recipe recipe, uint64_t seed);

/// For LadderJob::take_peak_bytes(): the peak of the CPU allocator's live bytes since the last call, in this process.
int64_t take_cpu_peak_bytes();

}  // namespace bellows::train
