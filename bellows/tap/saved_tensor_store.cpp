#include "bellows/tap/saved_tensor_store.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace bellows::tap {

SavedLayout::SavedLayout(const at::Tensor& tensor)
    : sizes(tensor.sizes()), strides(tensor.strides()), compact_sizes(sizes), options(tensor.options()) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] == 0 && sizes[i] > 1) compact_sizes[i] = 1;
  }
}

at::Tensor SavedLayout::compact(const at::Tensor& tensor) const {
  return compact_sizes == sizes ? tensor : tensor.as_strided(compact_sizes, strides);
}

at::Tensor SavedLayout::restore(const at::Tensor& unpacked) const {
  TORCH_CHECK_VALUE(unpacked.defined() && unpacked.sizes() == compact_sizes,
                    "SavedTensorTap: unpack() returned a tensor of sizes ",
                    unpacked.defined() ? c10::str(unpacked.sizes()) : "(undefined)", ", expected the packed sizes ",
                    c10::IntArrayRef(compact_sizes), ". Return the packed values with the packed sizes.");
  bool same = unpacked.scalar_type() == options.dtype().toScalarType() && unpacked.device() == options.device();
  for (size_t i = 0; i < sizes.size(); ++i) same = same && (compact_sizes[i] <= 1 || unpacked.stride(i) == strides[i]);
  at::Tensor result = unpacked;
  if (!same) {
    result = at::empty_strided(compact_sizes, strides, options);
    result.copy_(unpacked);
  }
  return result.sizes() == sizes && result.strides() == strides ? result : result.as_strided(sizes, strides);
}

bool SavedLayout::restorable() const {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t reach = 0;  // largest offset of the dimensions so far
  for (size_t i : order) {
    if (compact_sizes[i] <= 1) continue;
    if (strides[i] <= reach) return false;
    reach += strides[i] * (compact_sizes[i] - 1);
  }
  return true;
}

std::shared_ptr<PackedTensor> PackedStore::find(const at::Tensor& tensor) {
  const auto [first, last] = entries_.equal_range(tensor.storage().unsafeGetStorageImpl());
  for (auto it = first; it != last; ++it) {
    const Entry& entry = it->second;
    if (entry.version != tensor._version() || entry.offset != tensor.storage_offset()) continue;
    if (entry.dtype != tensor.scalar_type() || tensor.sizes() != entry.sizes || tensor.strides() != entry.strides)
      continue;
    if (auto packed = entry.packed.lock()) return packed;
  }
  return nullptr;
}

void PackedStore::sweep() {
  if (entries_.size() < sweep_at_) return;
  std::erase_if(entries_, [](const auto& item) { return item.second.packed.expired(); });
  sweep_at_ = std::max<size_t>(64, 2 * entries_.size());
}

std::shared_ptr<PackedTensor> PackedStore::pack_once(SavedTensorTap& tap, const at::Tensor& tensor,
                                                     const SavedLayout& layout) {
  if (!tap.packs_once()) return tap.pack(layout.compact(tensor));
  {
    MutexLock lock(mutex_);
    if (auto packed = find(tensor)) return packed;
  }
  auto packed = tap.pack(layout.compact(tensor));
  if (packed) {
    MutexLock lock(mutex_);
    sweep();
    entries_.emplace(tensor.storage().unsafeGetStorageImpl(),
                     Entry{tensor.storage().getWeakStorageImpl(), packed, tensor._version(), tensor.storage_offset(),
                           layout.sizes, layout.strides, tensor.scalar_type()});
  }
  return packed;
}

}  // namespace bellows::tap
