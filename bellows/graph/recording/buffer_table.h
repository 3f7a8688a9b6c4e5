#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <vector>

#include "bellows/graph/recording/recording.h"

namespace bellows::graph::detail {

/// A buffer in the current call of a region. While the weak reference exists, the address is not reused. The weak
/// reference does not count as a reference for autograd.
struct Buffer {
  c10::StorageImpl* address = nullptr;
  c10::weak_intrusive_ptr<c10::StorageImpl> weak;
  c10::Storage real{};   ///< the data; set only while pending operators need it
  bool pending = false;  ///< true until the operator that computes the buffer has run

  /// Returns whether pending operators read or write the buffer.
  bool busy() const { return pending || real; }
};

/// The buffers of the current call, by storage and by number. Buffers are numbered in the order in which they are first
/// used. A call that matches a recording therefore has the same numbers.
class BufferTable {
 public:
  /// Returns the number of the tensor's buffer. An unknown storage gets a new number.
  BufferId of(const at::Tensor& tensor) {
    if (!tensor.defined()) return no_buffer;
    if (!is_plain(tensor)) return opaque_buffer;
    return of(tensor.storage());
  }
  BufferId add(const c10::Storage& storage) {
    auto* const address = storage.unsafeGetStorageImpl();
    const auto id = static_cast<BufferId>(all_.size());
    all_.push_back({address, storage.getWeakStorageImpl()});
    try {
      known_.emplace(address, id);
    } catch (...) {
      all_.pop_back();
      throw;
    }
    return id;
  }
  /// Removes the newest buffers until `count` remain.
  void truncate(size_t count) {
    for (; all_.size() > count; all_.pop_back()) known_.erase(all_.back().address);
  }
  void reserve(size_t count) {
    all_.reserve(count);
    known_.reserve(count);
  }
  size_t size() const { return all_.size(); }
  Buffer& operator[](BufferId id) { return all_[id]; }

 private:
  BufferId of(const c10::Storage& storage) {
    const auto found = known_.find(storage.unsafeGetStorageImpl());
    return found != known_.end() ? found->second : add(storage);
  }

  std::vector<Buffer> all_;
  ska::flat_hash_map<const c10::StorageImpl*, BufferId> known_;
};

/// Calls visit(tensor) for each tensor of a stack entry that contains a tensor or a list of tensors. A missing optional
/// tensor is passed as an undefined tensor.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    static const at::Tensor nothing;
    for (const c10::IValue& item : value.toListRef()) visit(item.isTensor() ? item.toTensor() : nothing);
  }
}

}  // namespace bellows::graph::detail
