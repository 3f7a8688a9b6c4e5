#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

namespace bellows {

/// Disables gradient recording on this thread while the guard lives. Tensors created under it are ordinary tensors:
/// they keep a version counter, may be modified in place and may take part in autograd later. Operators still pass
/// through the autograd layer. Use it for code that updates parameters.
/// Ref:      torch.no_grad
using no_grad = c10::NoGradGuard;

/// Disables gradient recording, version counters and view tracking on this thread; operators skip the autograd layer.
/// Tensors created under it are *inference tensors*: outside the guard they can be read, but neither modified in place
/// nor saved for backward. Use it for evaluation and serving. Composite operators (matmul, dropout, attention) are not
/// decomposed.
/// Ref: torch.inference_mode
using inference_mode = c10::InferenceMode;

}  // namespace bellows
