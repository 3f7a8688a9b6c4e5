#include "bellows/tap/pending_storage.h"

#include <c10/core/StorageImpl.h>

#include <unordered_map>
#include <utility>

#include "bellows/core/mutex.h"

namespace bellows::tap {
namespace {

/// An explicit instantiation may name private members. The friend functions that it defines give access to them.
template <bool c10::StorageImpl::*throws, bool c10::StorageImpl::*checks>
struct PrivateFlags {
  friend bool& throws_on_access(c10::StorageImpl& storage) { return storage.*throws; }
  friend bool& checks_access(c10::StorageImpl& storage) { return storage.*checks; }
};
bool& throws_on_access(c10::StorageImpl& storage);
bool& checks_access(c10::StorageImpl& storage);
template struct PrivateFlags<&c10::StorageImpl::throw_on_immutable_data_ptr_,
                             &c10::StorageImpl::has_mutable_data_ptr_check_>;

/// Marks pending storages: an allocator that never allocates.
struct NoMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t) override {
    TORCH_CHECK(false, "the storage of a pending tensor was resized. Call bellows::sync() first.");
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

NoMemory* no_memory() {
  static auto* const made = new NoMemory;  // never destroyed: tensors may outlive static objects
  return made;
}

constexpr const char* pending_message =
    "this tensor has no value yet: the operators of its region run when the region ends, or when a value is needed. "
    "Call bellows::sync() before you access its data. To print the tensor, create a bellows::eager_guard.";
constexpr const char* held_message =
    "operators that read or write this tensor were called in a region and have not run yet. Call bellows::sync() "
    "before you access its data.";

/// A storage that at least one client of the process holds.
struct Held {
  int clients = 0;
  bool guarded = false;
  bool checked_before = false;  ///< what libtorch itself had set
};

struct Registry {
  Mutex mutex;
  int guarded BELLOWS_GUARDED_BY(mutex) = 0;  ///< number of guarded storages
  int open BELLOWS_GUARDED_BY(mutex) = 0;     ///< number of OpenStorages
  std::unordered_map<c10::StorageImpl*, Held> storages BELLOWS_GUARDED_BY(mutex);
};

Registry& registry() {
  static auto* const made = new Registry;  // never destroyed: guards may live on threads that outlive static objects
  return *made;
}

void unguard(c10::StorageImpl& storage, Held& held, Registry& all) BELLOWS_REQUIRES(all.mutex) {
  if (!held.guarded) return;
  --all.guarded;
  throws_on_access(storage) = false;
  checks_access(storage) = held.checked_before;
  held.guarded = false;
}

void guard(c10::StorageImpl& storage, Held& held, Registry& all) BELLOWS_REQUIRES(all.mutex) {
  if (all.open > 0 || throws_on_access(storage)) return;  // libtorch's own: fake and functional tensors
  auto& message = storage.get_extra_meta().custom_data_ptr_error_msg_;
  if (!message) message = held_message;
  held.checked_before = checks_access(storage);
  throws_on_access(storage) = true;
  checks_access(storage) = true;
  held.guarded = true;
  ++all.guarded;
}

}  // namespace

c10::intrusive_ptr<c10::StorageImpl> make_pending_storage(size_t nbytes, c10::Device device) {
  auto made = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(nbytes),
                                                    c10::DataPtr(nullptr, device), no_memory(), true);
  made->release_data_and_set_meta_custom_data_ptr_error_msg_(pending_message);  // despite its name, nothing is released
  return made;
}

bool is_pending(const c10::StorageImpl& storage) {
  return storage.allocator() == no_memory();
}

void fulfil(c10::StorageImpl& pending, c10::StorageImpl& computed) {
  throws_on_access(pending) = false;
  pending.get_extra_meta().custom_data_ptr_error_msg_.reset();
  pending.set_nbytes(computed.nbytes());
  pending.set_allocator(computed.allocator());
  pending.set_resizable(computed.resizable());
  pending.set_data_ptr_noswap(std::move(computed._mutable_data_ptr_no_checks()));
}

void abandon(c10::StorageImpl& pending, const std::string& why) {
  pending.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

c10::DataPtr withdraw_memory(c10::StorageImpl& storage, const std::string& why) {
  c10::DataPtr empty(nullptr, storage.device());
  std::swap(storage._mutable_data_ptr_no_checks(), empty);
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);  // despite its name, nothing is released
  return empty;
}

void provide_memory(c10::StorageImpl& storage, c10::DataPtr memory) {
  throws_on_access(storage) = false;
  storage.get_extra_meta().custom_data_ptr_error_msg_.reset();
  storage.set_data_ptr_noswap(std::move(memory));
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset, bool wrapped_number) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), keys, dtype);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  if (wrapped_number) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

OpenStorages::OpenStorages() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  ++all.open;
  all_open_ = all.guarded == 0;
}

OpenStorages::~OpenStorages() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  --all.open;
}

void StorageHolds::hold(const c10::Storage& storage, bool guarded) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  held_.push_back(storage.getWeakStorageImpl());
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  const auto place = [&]() BELLOWS_REQUIRES(all.mutex) {
    try {
      return all.storages.try_emplace(&impl).first;
    } catch (...) {
      held_.pop_back();  // release() expects each held storage in the registry
      throw;
    }
  }();
  Held& held = place->second;
  if (held.clients++ == 0) {
    if (guarded) guard(impl, held, all);
  } else {
    unguard(impl, held, all);
  }
}

void StorageHolds::open() {
  if (held_.empty()) return;
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  for (const auto& storage : held_) {
    auto* const impl = storage._unsafe_get_target();
    unguard(*impl, all.storages[impl], all);
  }
}

void StorageHolds::release() {
  if (held_.empty()) return;
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  for (const auto& storage : held_) {
    auto* const impl = storage._unsafe_get_target();
    const auto found = all.storages.find(impl);
    unguard(*impl, found->second, all);
    if (--found->second.clients == 0) all.storages.erase(found);
  }
  held_.clear();
}

}  // namespace bellows::tap
