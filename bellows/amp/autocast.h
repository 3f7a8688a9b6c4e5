#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "bellows/tap/half_operators.h"
#include "bellows/tap/weight_casts.h"

namespace bellows::amp {

/// While the guard exists, operators run in `dtype` or fp32 according to libtorch's autocast lists. Matrix
/// multiplications and convolutions run in `dtype`. Losses, distances and at::prod run in fp32. On CUDA, sums, norms,
/// softmax, powers and reciprocals also run in fp32. On the CPU, these operators keep the dtype of their input, because
/// their kernels accumulate in fp32 and round the result. Run the forward pass and the loss under the guard, and
/// backward outside it.
///
/// Guards can be nested. Cast weights are cached until the outermost guard ends, so each weight is cast once per step
/// instead of once per call. The weights of torch::nn::Linear, which libtorch's autocast does not cache, are cached,
/// too (tap/weight_casts.h). To cast each weight only once for several forward passes (gradient accumulation), put all
/// of these passes and their backward passes under an outer guard with enabled = false. End the outer guard before the
/// optimizer's step. On the CPU, fp16 matmuls and convolutions run in fp32 where libtorch's fp16 kernels are slow
/// (tap/half_operators.h).
/// Params:   enabled – false: autocast is off, even inside an enabled guard
///           cache – false: weights are cast at every use. Use this value while bellows::compile or another region
///           records operators
/// Numerics: if disabled, bit-identical to plain libtorch; if enabled, results have the same dtypes as in Python
///           (tests/amp/autocast_ops_test.cpp)
/// Threads:  affects the current thread. All threads share the cache of casts, so the end of a guard can cause another
///           thread to repeat a cast.
/// Throws:   c10::ValueError if `enabled` is true and `dtype` is neither bf16 nor fp16
/// Ref:      torch.autocast
class AutocastGuard {
 public:
  AutocastGuard(c10::DeviceType device, c10::ScalarType dtype, bool enabled = true, bool cache = true);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_;
  c10::ScalarType outer_dtype_;
  bool outer_enabled_, outer_cache_;
  tap::WeightCastGuard weight_casts_;
  tap::FastHalfGuard fast_half_;
};

}  // namespace bellows::amp
