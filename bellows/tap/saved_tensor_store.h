#pragma once

#include "bellows/core/mutex.h"
#include "bellows/tap/saved_tensor_tap.h"

#include <ATen/core/DimVector.h>
#include <c10/core/Storage.h>

#include <unordered_map>

/// Internal: implements SavedTensorTap's rules for layouts and duplicates.
namespace bellows::tap {

/// The sizes, strides and dtype of a saved tensor. With them, the tensor can be restored from its unpacked form.
struct SavedLayout {
  explicit SavedLayout(const at::Tensor& tensor);
  /// Returns the tensor without its expanded dimensions (stride 0), so that it contains each element once.
  at::Tensor compact(const at::Tensor& tensor) const;
  /// Converts `unpacked`, which has compact sizes, to the dtype, device, sizes and strides of the saved tensor.
  at::Tensor restore(const at::Tensor& unpacked) const;
  /// Returns true if no two elements of the compact tensor share memory. Other tensors cannot be restored.
  bool restorable() const;

  at::DimVector sizes, strides, compact_sizes;
  c10::TensorOptions options;
};

/// The packed tensors of one client. A tensor that is saved twice is packed only once.
/// Threads: thread-safe; no lock is held while the client is called
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
  std::shared_ptr<PackedTensor> find(const at::Tensor& tensor) BELLOWS_REQUIRES(mutex_);
  void sweep() BELLOWS_REQUIRES(mutex_);

  Mutex mutex_;
  std::unordered_multimap<const c10::StorageImpl*, Entry> entries_ BELLOWS_GUARDED_BY(mutex_);
  size_t sweep_at_ BELLOWS_GUARDED_BY(mutex_) = 64;
};

}  // namespace bellows::tap
