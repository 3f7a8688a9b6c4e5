#pragma once

#include "bellows/tap/saved_tensor_tap.h"

#include <ATen/core/DimVector.h>
#include <c10/core/Storage.h>

#include <mutex>
#include <unordered_map>

/// Internal to the component: the rules of SavedTensorTap about layout and duplicates.
namespace bellows::tap {

/// Sizes, strides and dtype of a saved tensor, for restoring it.
struct SavedLayout {
  explicit SavedLayout(const at::Tensor& tensor);
  /// Returns: the tensor without its expanded (stride 0) dimensions, so that it contains each element once
  at::Tensor compact(const at::Tensor& tensor) const;
  /// Returns: `unpacked`, which has the compact sizes, with the dtype, device, sizes and strides of the saved tensor
  at::Tensor restore(const at::Tensor& unpacked) const;
  /// True if no two elements of the compact tensor share memory. Only then can it be written.
  bool restorable() const;

  at::DimVector sizes, strides, compact_sizes;
  c10::TensorOptions options;
};

/// Tracks the tensors that one client has packed, so that a tensor saved twice is packed once.
/// Threads: safe; no lock is held while the client is called
class PackedStore {
 public:
  std::shared_ptr<PackedTensor> pack_once(SavedTensorTap& tap, const at::Tensor& tensor, const SavedLayout& layout);

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< reserves the address without keeping the memory
    std::weak_ptr<PackedTensor> packed;
    int64_t version, offset;
    at::DimVector sizes, strides;
    c10::ScalarType dtype;
  };
  std::shared_ptr<PackedTensor> find(const at::Tensor& tensor);
  void sweep();

  std::mutex mutex_;
  std::unordered_multimap<const c10::StorageImpl*, Entry> entries_;
  size_t sweep_at_ = 64;
};

}  // namespace bellows::tap
