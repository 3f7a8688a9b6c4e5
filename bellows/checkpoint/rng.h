#pragma once

#include "bellows/core/model.h"

namespace bellows::checkpoint {

/// The state of libtorch's default generators: "cpu" and those of all accelerators: "cuda:0", "cuda:1", …
NamedTensors rng_state();

/// Restores generators. A generator that this machine lacks is skipped with a warning.
/// Throws: c10::ValueError if a state has another size or dtype
void set_rng_state(const NamedTensors& state);

}  // namespace bellows::checkpoint
