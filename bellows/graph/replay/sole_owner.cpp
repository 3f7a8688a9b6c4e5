#include "bellows/graph/replay/sole_owner.h"

#include <torch/csrc/autograd/variable.h>

namespace bellows::graph::detail {

SoleOwner::SoleOwner(const std::vector<at::Tensor>& returned) {
  for (const at::Tensor& tensor : returned) {
    if (!tensor.defined()) continue;
    const bool again = known_.contains(tensor.unsafeGetTensorImpl());
    known_[tensor.unsafeGetTensorImpl()] += 2;  // `returned` and the caller
    const auto* const view = torch::autograd::impl::get_view_autograd_meta(tensor);
    if (!view || again) continue;
    if (view->has_bw_view()) ++known_[view->get_backward_view().base_.unsafeGetTensorImpl()];
    if (view->has_fw_view() && !view->shared_view_info())
      ++known_[view->get_forward_view().base_.unsafeGetTensorImpl()];
  }
}

bool SoleOwner::owns(const at::Tensor& returned) const {
  c10::StorageImpl* const storage = returned.storage().unsafeGetStorageImpl();
  uint32_t tensors = 0;
  for (const auto& [tensor, references] : known_) {
    if (!tensor->has_storage() || tensor->unsafe_storage().unsafeGetStorageImpl() != storage) continue;
    if (c10::raw::intrusive_ptr::use_count(tensor) != references) return false;
    ++tensors;
  }
  return c10::raw::intrusive_ptr::use_count(storage) == tensors;
}

}  // namespace bellows::graph::detail
