#pragma once

#include "bellows/core/model.h"

namespace bellows::test {

/// A model that only has these tensors; its forward gives its input back.
Model model_of(NamedTensors tensors);

/// Two transformer layers of width 32 with 4 heads, attention written out: tools/goldens/inspect_flops.py has the same.
/// Shapes: x [B, T, 32] → [B, T, 32]
Model small_encoder();

}  // namespace bellows::test
