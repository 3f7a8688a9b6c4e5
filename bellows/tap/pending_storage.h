#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace bellows::tap {

/// Storages whose data comes later, for a client of OpTap that answers operators before it runs them.
///
/// libtorch lets a storage throw when its data is asked for, but never stop: these functions reach the private flag. Sizes, strides,
/// views, autograd and comparisons of storages work as ever. Raw pointers that were taken before are not noticed.

/// A storage of `nbytes` bytes that has no memory yet. Every access to its data throws a c10::Error that names sync().
c10::intrusive_ptr<c10::StorageImpl> make_pending_storage(size_t nbytes, c10::Device device);

/// True from make_pending_storage() to fulfil().
bool is_pending(const c10::StorageImpl& storage);

/// Moves memory, allocator and size of `computed` into `pending`; whatever was made over `pending` meanwhile has data now.
void fulfil(c10::StorageImpl& pending, c10::StorageImpl& computed);

/// There will be no data: accesses say `why` from now on.
void abandon(c10::StorageImpl& pending, const std::string& why);

/// A tensor over a storage, without running an operator. `keys` as a tensor of the same kind has them: the ordinary way of
/// making one takes inference mode into account, which may have changed since.
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset, bool wrapped_number);

/// The storages that one client's pending operators read or write. Whoever reaches their data before open() gets a c10::Error
/// that names sync(): a host write would come too early, a read would find an old value. A storage that several clients
/// hold is not guarded while they do, so that two threads can share weights.
/// Threads: each object on one thread at a time; several objects at once
class StorageHolds {
 public:
  StorageHolds() = default;
  ~StorageHolds() { release(); }
  StorageHolds(const StorageHolds&) = delete;
  StorageHolds& operator=(const StorageHolds&) = delete;

  /// Until release(). Each storage once. Keeps its address, and not its data.
  void hold(const c10::Storage& storage, bool guarded);
  /// The operators run now: nothing throws any more. No other client's hold makes these storages throw before release().
  void open();
  void release();

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> held_;
};

}  // namespace bellows::tap
