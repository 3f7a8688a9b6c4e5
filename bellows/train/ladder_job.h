#pragma once

#include <memory>

#include "bellows/train/ladder.h"
#include "bellows/train/recipe.h"

namespace bellows::train {

/// `recipe` with every switch off that changes speed or memory only: what the ladder starts from.
Recipe without_techniques(Recipe recipe);

/// The run that a recipe describes, on Bellows' own step engine.
/// Throws: as make_job; c10::ValueError – no held-out data
std::unique_ptr<LadderJob> make_ladder_job(Recipe recipe, uint64_t seed);

/// Steady clock, the peak of the CPU allocator's live bytes, never stopped.
LadderInstruments real_instruments();

}  // namespace bellows::train
