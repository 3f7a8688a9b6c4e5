#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

namespace bellows {

/// No graph is recorded while the guard lives; tensors made under it are ordinary ones: they keep a version counter,
/// may be modified in place and may take part in autograd later. Operators still pass through the autograd layer. Use
/// it for code that updates parameters. Per thread.
/// Ref:      torch.no_grad
using no_grad = c10::NoGradGuard;

/// No graph, no version counters, no view tracking: the autograd layer is skipped altogether. Tensors made under it are
/// *inference tensors*: outside the guard they can be read, but neither modified in place nor saved for backward.
/// Use it for evaluation and serving. Composite operators (matmul, dropout, attention) run whole. Per thread.
/// Ref: torch.inference_mode
using inference_mode = c10::InferenceMode;

}  // namespace bellows
