#pragma once

#include "bellows/checkpoint/checkpoint.h"

namespace bellows::train {

/// Copies a state. Tensors of an earlier copy are reused if their shapes are equal.
/// Params: to – an empty state or an earlier copy
void copy_state(const checkpoint::State& from, checkpoint::State& to);

}  // namespace bellows::train
