#include "bellows/inspect/module_map.h"

#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>

#include "bellows/inspect/module_tracker.h"

namespace bellows::inspect {

namespace {

NamedTensors parameters_and_buffers(const Model& model) {
  NamedTensors tensors = model.named_parameters();
  for (auto& buffer : model.named_buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

ModuleMap::ModuleMap(const Model& model) : ModuleMap(parameters_and_buffers(model)) {}

ModuleMap::ModuleMap(const NamedTensors& tensors) {
  nodes_.push_back(Node{});
  by_path_.emplace("", root);
  for (const auto& [name, tensor] : tensors) {
    const size_t dot = name.rfind('.');
    const int owner = module(dot == std::string::npos ? std::string_view() : std::string_view(name).substr(0, dot));
    const c10::StorageImpl* storage = storage_of(tensor);
    const auto shared = owners_.find(storage);
    adopt(tensor, shared == owners_.end() ? owner : common(owner, shared->second.module));
  }
}

int ModuleMap::module(std::string_view path) {
  const std::string name(path);
  if (const auto found = by_path_.find(name); found != by_path_.end()) return found->second;
  const size_t dot = name.rfind('.');
  const int above = module(dot == std::string::npos ? std::string_view() : path.substr(0, dot));
  nodes_.push_back({name, above, nodes_[above].depth + 1});
  by_path_.emplace(name, size() - 1);
  return size() - 1;
}

int ModuleMap::owner(const at::Tensor& tensor) const {
  const auto found = owners_.find(storage_of(tensor));
  return found == owners_.end() || found->second.storage.expired() ? nobody : found->second.module;
}

void ModuleMap::adopt(const at::Tensor& tensor, int module) {
  if (!storage_of(tensor)) return;
  if (owners_.size() >= sweep_at_) drop_freed_storages();
  owners_.insert_or_assign(storage_of(tensor), Owned{tensor.storage().getWeakStorageImpl(), module});
}

void ModuleMap::drop_freed_storages() {
  std::erase_if(owners_, [](const auto& entry) { return entry.second.storage.expired(); });
  sweep_at_ = std::max<size_t>(1024, 2 * owners_.size());
}

int ModuleMap::common(int a, int b) const {
  if (a == nobody || b == nobody) return std::max(a, b);
  while (a != b)
    (nodes_[a].depth >= nodes_[b].depth ? a : b) = nodes_[nodes_[a].depth >= nodes_[b].depth ? a : b].parent;
  return a;
}

bool ModuleMap::inside(int module, int ancestor) const {
  return common(module, ancestor) == ancestor;
}

ModuleScope::ModuleScope(std::string_view path)
    : scope_(std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE)) {
  if (scope_->isActive()) scope_->before(std::string(module_scope_prefix) + std::string(path));
}

ModuleScope::~ModuleScope() = default;

}  // namespace bellows::inspect
