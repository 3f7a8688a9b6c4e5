#pragma once

#include <cstdint>
#include <functional>

#include "bellows/core/model.h"

namespace bellows::train {

/// Returns a model that runs the forward pass of `model` as a compiled function with frozen weights. The weights must
/// not change any more. Without gradients only.
/// Numerics: as compile(f, {.frozen = model}), see docs/compile.md
/// Cost:     the first batch of each shape waits for the compiler, 0.5 to 30 s
Model compiled_model(const Model& model);

/// Returns a model that runs `model` and then calls `after` with the number of samples of the batch and the time of the
/// forward pass in seconds. The time includes the work on the model's device.
/// Throws: forward throws Stopped after request_stop()
Model observed_model(const Model& model, std::function<void(int64_t samples, double seconds)> after);

}  // namespace bellows::train
