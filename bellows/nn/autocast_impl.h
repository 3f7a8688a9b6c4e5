#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

/// Autocast support for functions that are a single autograd node. The arguments are cast before the node, by operators
/// that autograd records, and autocast is off inside the node. Otherwise, autocast would add casts without autograd
/// history to its cache.
namespace bellows::nn {

/// Returns the dtype to which autocast would cast `tensor` for a matrix multiplication. The result is empty if autocast
/// is off or does not cast this tensor.
inline std::optional<at::ScalarType> autocast_type(const at::Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  if (device == at::kMeta || !tensor.is_floating_point() || tensor.scalar_type() == at::kDouble) return {};
  if (!at::autocast::is_autocast_enabled(device)) return {};
  return at::autocast::get_autocast_dtype(device);
}

class WithoutAutocast {
 public:
  explicit WithoutAutocast(const at::Tensor& tensor)
      : guard_(tensor.is_meta() ? c10::DispatchKeySet()
                                : c10::DispatchKeySet(at::autocast::get_autocast_dispatch_key_from_device_type(
                                      tensor.device().type()))) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace bellows::nn
