#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "bellows/tap/weight_casts.h"

namespace bellows::amp {

/// While the guard lives, operators that profit run in `dtype` and operators that need the range run in fp32, by
/// libtorch's lists: matrix products and convolutions low; losses, distances and products of many numbers in fp32; on
/// CUDA sums, norms, softmax, powers and reciprocals, too. On the CPU these keep their input's dtype: their kernels
/// add up in fp32 and round the result. Run the forward pass and the loss under the guard, backward outside.
///
/// Guards nest; the outermost one drops the cache of cast weights when it ends, so a weight is cast once a step and not
/// once a call, in torch::nn::Linear too (tap/weight_casts.h). To accumulate gradients over several forward passes
/// with one cast of each weight, put a guard with enabled = false around them and their backward passes, and end it
/// before the optimizer's step.
/// Params:   enabled – false: operators run as if there were no guard, inside an outer guard, too
///           cache – false: weights are cast at every use (needed while operators are recorded)
/// Numerics: disabled, bit for bit plain libtorch; dtypes as Python's (tests/amp/autocast_ops_test.cpp)
/// Threads:  per thread; the cache of casts is the process's, so the end of one thread's guard may cost another a cast
/// Throws:   c10::ValueError – a dtype other than bf16 and fp16
/// Ref:      torch.autocast
class autocast {
 public:
  autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled = true, bool cache = true);
  ~autocast();
  autocast(const autocast&) = delete;
  autocast& operator=(const autocast&) = delete;

 private:
  c10::DeviceType device_;
  c10::ScalarType outer_dtype_;
  bool outer_enabled_, outer_cache_;
  tap::WeightCastGuard weight_casts_;
};

}  // namespace bellows::amp
