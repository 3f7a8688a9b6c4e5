#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::compile_detail {

/// Replaces the operators of attention in training with two kernels, which keep the logits of a head in the cache:
/// - forward: bmm or baddbmm, scaling, masks (added, masked_fill, where), _softmax or _safe_softmax, multiplication by a
///   dropout mask, bmm
/// - backward: the gradients of these operators
/// The forward kernel stores the softmax result if another instruction reads it, such as the backward kernel, and
/// likewise the weights after dropout. Attention stays unfused if its other values between the two matmuls are read
/// elsewhere or are outputs. Other dtypes than fp32, more than 1024 keys, and heads wider than 256 stay unfused, too.
/// Numerics: rtol 1e-4. Bit-identical for any number of threads. Rows without any logit are NaN after
///           _softmax and 0 after _safe_softmax, as in libtorch
/// Threads:  thread-safe
graph::Pass attention_kernels_pass();

/// The name of the pass.
inline constexpr const char* attention_kernels_step = "attention kernels";

}  // namespace bellows::compile_detail
