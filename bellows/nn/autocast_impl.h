#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

/// Autocast around functions that are one node of the graph: their arguments are cast before, by operators that autograd
/// sees, and inside it is off. Left on inside, it would put casts without history into its cache.
namespace bellows::nn {

/// The dtype that autocast would give a matrix product of `tensor` now; none: it is off, or leaves such a tensor alone.
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
