#include "bellows/amp/autocast.h"

#include <ATen/autocast_mode.h>

namespace bellows::amp {

AutocastGuard::AutocastGuard(c10::DeviceType device, c10::ScalarType dtype, bool enabled, bool cache)
    : device_(device),
      outer_dtype_(at::autocast::get_autocast_dtype(device)),
      outer_enabled_(at::autocast::is_autocast_enabled(device)),
      outer_cache_(at::autocast::is_autocast_cache_enabled()),
      weight_casts_(enabled && cache),
      fast_half_(enabled && dtype == at::kHalf && device == c10::kCPU) {
  TORCH_CHECK_VALUE(!enabled || dtype == at::kBFloat16 || dtype == at::kHalf, "autocast: expected bf16 or fp16, got ",
                    dtype, ". For full precision, pass enabled = false.");
  // libtorch's cache does not store the dtype of a cast.
  if (enabled && dtype != outer_dtype_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device, enabled);
  if (enabled) at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_cache_enabled(cache);
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  const bool outermost = at::autocast::decrement_nesting() == 0;
  if (outermost || at::autocast::get_autocast_dtype(device_) != outer_dtype_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, outer_enabled_);
  at::autocast::set_autocast_dtype(device_, outer_dtype_);
  at::autocast::set_autocast_cache_enabled(outer_cache_);
}

}  // namespace bellows::amp
