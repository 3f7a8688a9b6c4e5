#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "bellows/tap/weight_casts.h"

namespace bellows::amp {

/// While the guard lives, operators run in `dtype` or fp32 according to libtorch's lists. Matrix multiplications and
/// convolutions run in `dtype`; losses, distances and products over many elements run in fp32. On CUDA, sums, norms,
/// softmax, powers and reciprocals also run in fp32. On the CPU these keep their input's dtype, because their kernels
/// accumulate in fp32 and round the result. Run the forward pass and the loss under the guard, and backward outside it.
///
/// Guards nest. When the outermost guard ends, it clears the cache of cast weights. A weight is therefore cast once per
/// step and not once per call, also in torch::nn::Linear (tap/weight_casts.h). To accumulate gradients over several
/// forward passes with one cast per weight, put a guard with enabled = false around these passes and their backward
/// passes. End it before the optimizer's step.
/// Params:   enabled – false: operators run as if there were no guard, also inside another guard
///           cache – false: weights are cast at every use (required while operators are recorded)
/// Numerics: if disabled, bit-identical to plain libtorch; dtypes as in Python (tests/amp/autocast_ops_test.cpp)
/// Threads:  affects the current thread. The cache of casts belongs to the process, so the end of a guard can cause
///           another thread to repeat a cast.
/// Throws:   c10::ValueError if `dtype` is neither bf16 nor fp16
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
};

}  // namespace bellows::amp
