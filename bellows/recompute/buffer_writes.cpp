#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "bellows/core/mutex.h"
#include "bellows/recompute/buffer_writes.h"
#include "bellows/recompute/selection.h"

namespace bellows::recompute::detail {

namespace {

/// Indices of the arguments that an operator writes.
struct WrittenArguments {
  std::vector<size_t> declared, statistics;
  bool none() const { return declared.empty() && statistics.empty(); }
};

WrittenArguments written_arguments(const c10::FunctionSchema& schema) {
  WrittenArguments result;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias && alias->isWrite()) {
      result.declared.push_back(i);
    } else if (arguments[i].name() == "running_mean" || arguments[i].name() == "running_var") {
      result.statistics.push_back(i);
    }
  }
  return result;
}

const WrittenArguments& known_written_arguments(const c10::OperatorHandle& handle) {
  static SharedMutex mutex;
  static auto* const known BELLOWS_PT_GUARDED_BY(mutex) =
      new std::unordered_map<const c10::FunctionSchema*, WrittenArguments>;
  const auto* schema = &handle.schema();
  {
    const SharedLock lock(mutex);
    if (const auto found = known->find(schema); found != known->end()) return found->second;
  }
  const MutexLock lock(mutex);
  return known->try_emplace(schema, written_arguments(*schema)).first->second;  // references to elements stay valid
}

/// Does not access data pointers, because pending tensors of compiled functions have none.
bool same_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

/// True if both tensors have the same elements, so that restoring one restores the other.
bool same_view(const at::Tensor& a, const at::Tensor& b) {
  return same_storage(a, b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

}  // namespace

void BufferWrites::check(const tap::OpRef& op, tap::Stack& stack) {
  if (PastRegions::active()) return;
  const MutexLock lock(mutex_);
  if (std::exchange(stop_, false)) throw Enough{};  // once: destructors on the way out may call operators
  name_ = op.name();
  with_gradients_ = c10::GradMode::is_enabled();
  drew_ = drew_ || operator_kind(op.handle()).random;
  if (!keep_) return;
  const WrittenArguments& written = known_written_arguments(op.handle());
  if (written.none()) return;
  const auto arguments = op.arguments(stack);
  for (const size_t i : written.statistics) {
    if (arguments[i].isTensor()) note(arguments[i].toTensor(), false);
  }
  for (const size_t i : written.declared) {
    if (arguments[i].isTensor()) {
      note(arguments[i].toTensor(), true);
    } else if (arguments[i].isTensorList()) {
      for (const at::Tensor& tensor : arguments[i].toTensorVector()) note(tensor, true);
    }
  }
}

std::string BufferWrites::operator_name() const {
  const MutexLock lock(mutex_);
  return name_;
}

bool BufferWrites::wrote(const at::Tensor& tensor) const {
  const MutexLock lock(mutex_);
  return std::any_of(before_.begin(), before_.end(),
                     [&](const Before& one) { return same_storage(one.tensor, tensor); });
}

bool BufferWrites::drew() {
  const MutexLock lock(mutex_);
  return std::exchange(drew_, false);
}

bool BufferWrites::operator_saves() const {
  const MutexLock lock(mutex_);
  return with_gradients_;
}

void BufferWrites::stop_at_next_operator() {
  const MutexLock lock(mutex_);
  stop_ = true;
}

void BufferWrites::note(const at::Tensor& tensor, bool counted) {
  if (!tensor.defined() || tensor.is_inference() || !tensor.has_storage()) return;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (made_here_.contains(storage)) return;
  if (counted && tensor._version() == 0) {
    made_here_.emplace(storage, tensor.storage().getWeakStorageImpl());
    return;
  }
  for (const Before& one : before_) {
    if (same_view(one.tensor, tensor)) return;
  }
  const c10::NoGradGuard no_grad;
  const PastRegions not_the_functions_operators;
  const at::Tensor data = tensor.tensor_data();
  before_.push_back(
      {data, data.clone(), tensor.unsafeGetTensorImpl()->version_counter(), static_cast<uint32_t>(tensor._version())});
}

void BufferWrites::restore() {
  const c10::NoGradGuard no_grad;
  for (auto one = before_.rbegin(); one != before_.rend(); ++one) {
    one->tensor.copy_(one->values);
    one->counter.set_version(one->version);
  }
  before_.clear();
  made_here_.clear();
}

}  // namespace bellows::recompute::detail
