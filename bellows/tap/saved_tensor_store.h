#pragma once

#include "bellows/tap/saved_tensor_tap.h"

#include <ATen/core/DimVector.h>
#include <c10/core/Storage.h>

#include <mutex>
#include <unordered_map>

/// Internal to the component: the rules of SavedTensorTap about layout and duplicates.
namespace bellows::tap {

/// Sizes, strides and dtype of a saved tensor, and the way back to them.
struct SavedLayout {
  explicit SavedLayout(const at::Tensor& tensor);
  /// The tensor without its repeated (stride 0) dimensions: each element once.
  at::Tensor compact(const at::Tensor& tensor) const;
  /// `unpacked`, which has compact sizes, in the dtype, device and strides of the saved tensor.
  at::Tensor restore(const at::Tensor& unpacked) const;
  /// No two elements of the compact tensor share memory, so that it can be written.
  bool restorable() const;

  at::DimVector sizes, strides, compact_sizes;
  c10::TensorOptions options;
};

/// Remembers what one client packed, so that a tensor saved twice is packed once.
/// Threads: safe from all; the client is called without a lock
class PackedStore {
 public:
  std::shared_ptr<PackedTensor> pack_once(SavedTensorTap& tap, const at::Tensor& tensor, const SavedLayout& layout);

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< keeps the address from being used again, not the memory
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
