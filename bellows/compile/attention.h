#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::compile_detail {

/// Replaces the operators of attention in training with two kernels, which keep the logits of a head in the cache:
/// - forward: bmm or baddbmm, scaling, masks (added, masked_fill, where), _softmax or _safe_softmax, multiplication by a
///   dropout mask, bmm
/// - backward: the gradients of these operators
/// The forward kernel stores the softmax result and the weights after dropout only if another instruction reads them,
/// such as the backward kernel. Attention stays unfused if any other value between the two matmuls is an output or is
/// read elsewhere. It also stays unfused with dtypes other than fp32, more than 1024 keys, or heads wider than 256.
/// Numerics: rtol 1e-4. Bit-identical for any number of threads. Rows without any logit are NaN after
///           _softmax and 0 after _safe_softmax, as in libtorch
/// Threads:  thread-safe
graph::Pass attention_kernels_pass();

/// The name of the pass.
inline constexpr const char* attention_kernels_step = "attention kernels";

}  // namespace bellows::compile_detail
