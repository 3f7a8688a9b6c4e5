#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

namespace bellows {

/// Disables gradient recording on this thread while the guard exists. Tensors created under the guard are ordinary
/// tensors. They have a version counter, may be modified in place, and may be used with autograd later. Operators still
/// pass through the autograd layer. Use this guard for code that updates parameters.
/// Ref: torch.no_grad
using no_grad = c10::NoGradGuard;

/// Disables gradient recording, version counters and view tracking on this thread while the guard exists. Operators
/// skip the autograd layer. Tensors created under the guard are *inference tensors*. Outside the guard, they can be
/// read but not modified in place or saved for backward. Use this guard for evaluation and serving.
/// Ref: torch.inference_mode
using inference_mode = c10::InferenceMode;

}  // namespace bellows
