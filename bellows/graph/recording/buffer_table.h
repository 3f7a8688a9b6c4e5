#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <vector>

#include "bellows/graph/recording/graph.h"

namespace bellows::graph::detail {

/// A buffer in the present call of a region. The weak reference keeps the address from being given to another storage; it is no
/// reference that autograd would count.
struct Buffer {
  c10::StorageImpl* address = nullptr;
  c10::weak_intrusive_ptr<c10::StorageImpl> weak;
  c10::Storage real{};   ///< data, while operators that have not run yet need it
  bool pending = false;  ///< its operator has not run yet

  /// Something that has not run yet reads or writes it.
  bool busy() const { return pending || real; }
};

/// The buffers of the present call, by storage and by number. Numbers are given in the order of arrival, so a call that does as
/// a recording gives the recording's numbers.
class BufferTable {
 public:
  /// The number of a tensor's buffer, a new one where the storage is unknown.
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
  /// Forgets the newest ones.
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

/// Calls visit(tensor) for the tensors of a stack entry that holds a tensor or a list of them; an optional tensor that is not there is an undefined one.
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
