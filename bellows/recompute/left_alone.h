#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <unordered_set>
#include <vector>

namespace bellows::recompute::detail {

/// Tensors that a guard does not compress or offload. The same applies to all tensors that share memory with them.
class LeftAlone {
 public:
  explicit LeftAlone(const std::vector<at::Tensor>& tensors) {
    held_.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || !tensor.has_storage()) continue;
      held_.push_back(tensor.storage());
      addresses_.insert(tensor.storage().unsafeGetStorageImpl());
    }
  }
  bool has(const at::Tensor& tensor) const {
    return !addresses_.empty() && addresses_.contains(tensor.storage().unsafeGetStorageImpl());
  }

 private:
  std::vector<c10::Storage> held_;
  std::unordered_set<const c10::StorageImpl*> addresses_;
};

}  // namespace bellows::recompute::detail
