#include "bellows/tap/weight_casts.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <utility>

#include "bellows/tap/kernel_replacement.h"

namespace bellows::tap {

namespace {

thread_local int weight_cast_guards = 0;

/// A leaf whose cast libtorch would cache: the same conditions as in at::autocast::cached_cast.
bool is_cacheable(const at::Tensor& leaf) {
  return leaf.scalar_type() == at::kFloat && leaf.requires_grad() && leaf.is_leaf() && !leaf.is_view() &&
         leaf.dim() == 2 && leaf.is_contiguous() && at::autocast::is_autocast_cache_enabled();
}

/// Like at::autocast::cached_cast, but also handles a view that is the transpose of rows of a trainable leaf.
at::Tensor cast_weight(at::ScalarType dtype, const at::Tensor& tensor, c10::DeviceType device) {
  if (weight_cast_guards > 0 && tensor.is_view() && tensor.dim() == 2) {
    const at::Tensor leaf(tensor._base());
    const int64_t columns = tensor.size(0);
    if (is_cacheable(leaf) && leaf.size(1) == columns && columns > 0 && tensor.stride(0) == 1 &&
        tensor.stride(1) == columns) {
      const int64_t offset = tensor.storage_offset() - leaf.storage_offset();
      const at::Tensor cast = at::autocast::cached_cast(dtype, leaf, device);
      if (tensor.size(1) == leaf.size(0)) return cast.t();
      if (offset % columns == 0) return cast.narrow(0, offset / columns, tensor.size(1)).t();
    }
  }
  return at::autocast::cached_cast(dtype, tensor, device);
}

/// Autocast's kernels for one device type.
template <c10::DeviceType device>
struct Kernels {
  using Exclude = c10::impl::ExcludeDispatchKeyGuard;
  static c10::DispatchKey key() { return at::autocast::get_autocast_dispatch_key_from_device_type(device); }

  static at::Tensor addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                          const at::Scalar& alpha) {
    const Exclude no_autocast(key());
    const auto dtype = at::autocast::get_autocast_dtype(device);
    return at::addmm(at::autocast::cached_cast(dtype, self, device), cast_weight(dtype, a, device),
                     cast_weight(dtype, b, device), beta, alpha);
  }
  static at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
    const Exclude no_autocast(key());
    const auto dtype = at::autocast::get_autocast_dtype(device);
    return at::mm(cast_weight(dtype, a, device), cast_weight(dtype, b, device));
  }
  static at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
    const Exclude no_autocast(key());
    const auto dtype = at::autocast::get_autocast_dtype(device);
    return at::matmul(cast_weight(dtype, a, device), cast_weight(dtype, b, device));
  }

  static torch::Library install() {
    torch::Library library(torch::Library::IMPL, "aten", key(), __FILE__, __LINE__);
    library.impl("addmm", addmm);
    library.impl("mm", mm);
    library.impl("matmul", matmul);
    return library;
  }
};

using Libraries = std::pair<torch::Library, torch::Library>;

Libraries* install() {
  const SilentReplacement silent;
  return new Libraries(Kernels<c10::kCPU>::install(), Kernels<c10::kCUDA>::install());
}

}  // namespace

WeightCastGuard::WeightCastGuard(bool enabled) : enabled_(enabled) {
  if (!enabled_) return;
  [[gnu::used]] static const Libraries* const installed = install();  // never undone
  ++weight_cast_guards;
}

WeightCastGuard::~WeightCastGuard() {
  if (enabled_) --weight_cast_guards;
}

bool WeightCastGuard::active() {
  return weight_cast_guards > 0;
}

}  // namespace bellows::tap
