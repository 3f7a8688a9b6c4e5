#pragma once

#include "bellows/core/model.h"

namespace bellows::checkpoint {

/// The state of libtorch's default generators: "cpu" and those of every accelerator: "cuda:0", "cuda:1", …
NamedTensors rng_state();

/// Puts generators back. A generator that this machine lacks is passed over with a warning.
/// Throws: c10::ValueError – a state of another size or type
void set_rng_state(const NamedTensors& state);

}  // namespace bellows::checkpoint
