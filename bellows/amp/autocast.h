#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace bellows::amp {

/// While the guard lives, operators that profit run in `dtype` and operators that need the range stay in fp32, by
/// libtorch's lists. Guards nest; the outermost one drops the cache of cast weights when it ends, so a weight is cast
/// once a step and not once a call. Run the forward pass and the loss under it, backward outside.
/// Params:   enabled – false: operators run as if there were no guard, inside an outer guard, too cache – false:
///           weights are cast at every use (needed while operators are recorded)
/// Numerics: disabled, bit for bit plain libtorch
/// Threads:  per thread; autograd's workers take the state from the forward pass
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
};

}  // namespace bellows::amp
