#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace bellows::tap {

/// Pending storages receive their data later. OpTap clients use them if they return results before they execute the
/// operators.
///
/// libtorch can make a storage throw when its data is accessed, but has no interface to turn this off again. Therefore,
/// these functions set libtorch's private flag. Sizes, strides, views, autograd and comparisons of storages work as
/// usual. Accesses through raw pointers that were obtained earlier are not detected.

/// Returns a storage of `nbytes` bytes without memory. Every access to its data throws a c10::Error that mentions
/// sync().
c10::intrusive_ptr<c10::StorageImpl> make_pending_storage(size_t nbytes, c10::Device device);

/// Returns true until fulfil() is called for a storage that make_pending_storage() created.
bool is_pending(const c10::StorageImpl& storage);

/// Moves memory, allocator and size of `computed` into `pending`. Afterwards, all tensors with this storage have data.
void fulfil(c10::StorageImpl& pending, c10::StorageImpl& computed);

/// Marks a pending storage as failed. It never receives data, and accesses throw a c10::Error with the message `why`.
void abandon(c10::StorageImpl& pending, const std::string& why);

/// Takes the memory out of a storage whose data can be obtained again, for example from other ranks. Sizes, strides and
/// views stay. Until provide_memory(), every access to the data throws a c10::Error with the message `why`.
c10::DataPtr withdraw_memory(c10::StorageImpl& storage, const std::string& why);

/// Gives memory to a storage after withdraw_memory(). All tensors with this storage then use it.
/// Params: memory – at least as many bytes as the storage has
void provide_memory(c10::StorageImpl& storage, c10::DataPtr memory);

/// Creates a tensor with a given storage without running an operator.
/// Params: keys – dispatch keys of an existing tensor of the same kind. This function does not derive the keys from the
///                current inference mode, as libtorch's constructors do
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset, bool wrapped_number);

/// While an object of this class exists, StorageHolds guards no further storages. It is for programs that read many
/// storages at once, and is cheaper than a StorageHolds.
class OpenStorages {
 public:
  OpenStorages();
  ~OpenStorages();
  OpenStorages(const OpenStorages&) = delete;
  OpenStorages& operator=(const OpenStorages&) = delete;

  /// Returns whether no storage is guarded while this object exists. If not, hold and open the storages that you access.
  bool all_open() const { return all_open_; }

 private:
  bool all_open_ = false;
};

/// The storages that the pending operators of one client read or write. Until open(), accesses to their data throw a
/// c10::Error that mentions sync(). Without this error, a write could come too early, or a read could return an old
/// value. If several clients hold a storage at the same time, accesses to this storage do not throw, so that threads
/// can share weights.
/// Threads: use each object on one thread at a time; different objects may be used concurrently
class StorageHolds {
 public:
  StorageHolds() = default;
  ~StorageHolds() { release(); }
  StorageHolds(const StorageHolds&) = delete;
  StorageHolds& operator=(const StorageHolds&) = delete;

  /// Holds a storage until release(). Call this function once per storage. The object reserves the address of the
  /// storage but does not keep the data alive.
  void hold(const c10::Storage& storage, bool guarded);
  /// Makes the data of all held storages accessible again. Call this function when the pending operators run. The
  /// storages then stay accessible until release(), even if another client holds them, too.
  void open();
  void release();

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> held_;
};

}  // namespace bellows::tap
