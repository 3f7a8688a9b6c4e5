#pragma once

#include "bellows/core/model.h"

namespace bellows::checkpoint {

/// Returns the states of libtorch's default generators: "cpu", and "cuda:0", "cuda:1", … for all accelerators.
NamedTensors rng_state();

/// Restores the states of generators. States of generators that this machine does not have are skipped with a warning.
/// Throws: c10::ValueError if a state has the wrong size or dtype
void set_rng_state(const NamedTensors& state);

}  // namespace bellows::checkpoint
