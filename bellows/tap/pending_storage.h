#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace bellows::tap {

/// Storages that get their data later. They serve OpTap clients that answer operators before executing them.
///
/// libtorch can make a storage throw on data access, but has no interface to end this. These functions therefore set
/// the private flag. Sizes, strides, views, autograd and comparisons of storages work as usual. Accesses through raw
/// pointers that were taken earlier are not detected.

/// Returns: a storage of `nbytes` bytes without memory. Every access to its data throws a c10::Error that mentions
///          sync().
c10::intrusive_ptr<c10::StorageImpl> make_pending_storage(size_t nbytes, c10::Device device);

/// True from make_pending_storage() until fulfil().
bool is_pending(const c10::StorageImpl& storage);

/// Moves memory, allocator and size of `computed` into `pending`. All tensors over `pending` have data afterwards.
void fulfil(c10::StorageImpl& pending, c10::StorageImpl& computed);

/// Marks a pending storage that will never get data: accesses throw a c10::Error with the message `why`.
void abandon(c10::StorageImpl& pending, const std::string& why);

/// Makes a tensor over a storage without running an operator.
/// Params: keys – those of an existing tensor of the same kind. The usual constructors derive them from the current
///         inference mode, which may have changed.
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset, bool wrapped_number);

/// The storages that one client's pending operators read or write. Accessing their data before open() throws a
/// c10::Error that mentions sync(): a write would come too early, and a read would return an old value. A storage that
/// several clients hold at the same time is not guarded, so that threads can share weights.
/// Threads: use each object on one thread at a time; different objects can be used concurrently
class StorageHolds {
 public:
  StorageHolds() = default;
  ~StorageHolds() { release(); }
  StorageHolds(const StorageHolds&) = delete;
  StorageHolds& operator=(const StorageHolds&) = delete;

  /// Holds a storage until release(). Call it once per storage. It keeps the storage's address reserved, but not its
  /// data.
  void hold(const c10::Storage& storage, bool guarded);
  /// Ends the guarding, because the pending operators run now. Until release(), holds of other clients do not guard
  /// these storages either.
  void open();
  void release();

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> held_;
};

}  // namespace bellows::tap
