#include "bellows/inspect/op_info.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bellows/core/mutex.h"

namespace bellows::inspect {

namespace {

bool is_view(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  for (const c10::Argument& result : schema.returns()) {
    if (!result.alias_info() || result.alias_info()->isWrite()) return false;
  }
  return true;
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  for (std::string_view prefix : prefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

OpInfo make_info(const std::string& name, const std::optional<c10::OperatorHandle>& found) {
  using c10::DispatchKey;
  OpInfo info;
  info.name = name;
  if (!found) return info;
  const c10::OperatorHandle& handle = *found;
  info.schema = handle.hasSchema() ? &handle.schema() : nullptr;
  info.flops = flop_formula(name);
  if (!info.schema) return info;
  info.composite = handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
  info.view = is_view(*info.schema);
  info.uninitialized = starts_with_any(name, {"aten::empty", "aten::new_empty", "aten::resize_", "aten::set_"});
  info.random = handle.hasTag(at::Tag::nondeterministic_seeded);
  info.host_value = handle.hasTag(at::Tag::data_dependent_output);
  // Excluded: indexing, which is tagged because of masks (these call aten::nonzero themselves), and least squares,
  // whose result has a dynamic size only in the schema.
  info.dynamic_shape =
      (handle.hasTag(at::Tag::dynamic_output_shape) && name != "aten::index" && name != "aten::linalg_lstsq") ||
      name == "aten::_unique";
  info.copy = name == "aten::copy_" || name == "aten::_to_copy" || name == "aten::_copy_from";
  info.autocast[0] = handle.hasKernelForDispatchKey(DispatchKey::AutocastCPU);
  info.autocast[1] = handle.hasKernelForDispatchKey(DispatchKey::AutocastCUDA);
  return info;
}

/// Operators appear and disappear only with loaded libraries, so entries are never removed. A new FLOP formula adds a
/// second info to an operator.
class OpInfoCache {
 public:
  const OpInfo& get(std::string_view name, std::string_view overload) {
    const std::pair<std::string_view, std::string_view> key(name, overload);
    const int64_t version = flop_formula_version();
    {
      SharedLock lock(mutex_);
      if (auto found = infos_.find(key); found != infos_.end() && found->second.version == version) {
        return found->second.infos.back();
      }
    }
    auto handle = c10::Dispatcher::singleton().findOp({std::string(name), std::string(overload)});
    auto names = std::make_unique<std::pair<std::string, std::string>>(name, overload);
    const std::pair<std::string_view, std::string_view> kept(names->first, names->second);
    OpInfo info = make_info(names->first, handle);
    MutexLock lock(mutex_);
    Entry& entry = infos_.try_emplace(kept, Entry{std::move(names), {}, 0}).first->second;
    entry.version = version;
    return entry.infos.emplace_back(std::move(info));
  }

 private:
  struct Entry {
    std::unique_ptr<std::pair<std::string, std::string>> names;  // the key points into it
    std::list<OpInfo> infos;  // the last one is valid; callers may still refer to the others
    int64_t version;
  };
  SharedMutex mutex_;
  std::map<std::pair<std::string_view, std::string_view>, Entry> infos_ BELLOWS_GUARDED_BY(mutex_);
};

}  // namespace

const OpInfo& op_info(std::string_view name, std::string_view overload) {
  static OpInfoCache& cache = *new OpInfoCache;  // never destroyed, so that it outlives all threads
  return cache.get(name, overload);
}

const OpInfo& op_info(const c10::OperatorHandle& handle) {
  return op_info(handle.operator_name().name, handle.operator_name().overload_name);
}

bool autocast_wraps(const OpInfo& info, c10::ArrayRef<c10::IValue> inputs) {
  if (!info.autocast[0] && !info.autocast[1]) return false;
  using c10::DispatchKey;
  bool cpu = false, cuda = false;
  for_each_tensor(inputs, [&](const at::Tensor& tensor) { (tensor.is_cuda() ? cuda : cpu) = true; });
  return (cpu && info.autocast[0] && !c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutocastCPU)) ||
         (cuda && info.autocast[1] && !c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutocastCUDA));
}

int64_t touched_bytes(const at::Tensor& tensor) {
  const int64_t bytes = tensor.numel() * static_cast<int64_t>(tensor.itemsize());
  return tensor.has_storage() ? std::min<int64_t>(bytes, tensor.storage().nbytes()) : bytes;
}

int64_t touched_bytes(c10::ArrayRef<c10::IValue> values) {
  int64_t bytes = 0;
  for_each_tensor(values, [&](const at::Tensor& tensor) { bytes += touched_bytes(tensor); });
  return bytes;
}

std::string shortened(const std::string& name, size_t width) {
  return name.size() <= width ? name : "..." + name.substr(name.size() - width + 3);
}

}  // namespace bellows::inspect
