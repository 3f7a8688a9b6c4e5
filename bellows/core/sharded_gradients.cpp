#include "bellows/core/sharded_gradients.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "bellows/core/mutex.h"

namespace bellows {

namespace {

/// Maps tensors by address. ShardedGradientsEntry keeps the tensors alive.
struct ScatteredGradients {
  SharedMutex mutex;
  std::unordered_map<const at::TensorImpl*, GradientPart> parts BELLOWS_GUARDED_BY(mutex);
  std::atomic<bool> any = false;  ///< read without the lock
};

ScatteredGradients& scattered() {
  static ScatteredGradients all;
  return all;
}

}  // namespace

GradientPart gradient_part(const at::Tensor& parameter) {
  ScatteredGradients& all = scattered();
  if (all.any) {
    const SharedLock lock(all.mutex);
    const auto found = all.parts.find(parameter.unsafeGetTensorImpl());
    if (found != all.parts.end()) return found->second;
  }
  return {.owner = nullptr, .part = parameter};
}

std::vector<const ShardedGradients*> gradient_owners(const std::vector<at::Tensor>& parameters) {
  std::vector<const ShardedGradients*> owners;
  for (const at::Tensor& parameter : parameters) {
    const ShardedGradients* owner = gradient_part(parameter).owner;
    if (owner && std::find(owners.begin(), owners.end(), owner) == owners.end()) owners.push_back(owner);
  }
  return owners;
}

ShardedGradientsEntry::ShardedGradientsEntry(const ShardedGradients* owner,
                                             std::vector<std::pair<at::Tensor, at::Tensor>> parts)
    : owner_(owner), parts_(std::move(parts)) {
  earlier_.reserve(parts_.size());
  for (const auto& [parameter, part] : parts_) earlier_.push_back(gradient_part(parameter));
}

// The delegated constructor has created the object, so if this body throws, the destructor removes what it registered.
ShardedGradientsEntry::ShardedGradientsEntry(const ShardedGradients& owner,
                                             std::vector<std::pair<at::Tensor, at::Tensor>> parts,
                                             const std::vector<at::Tensor>& copies)
    : ShardedGradientsEntry(&owner, std::move(parts)) {
  ScatteredGradients& all = scattered();
  const MutexLock lock(all.mutex);
  for (const auto& [parameter, part] : parts_) {
    const bool copied = std::any_of(copies.begin(), copies.end(),
                                    [&, &known = parameter](const at::Tensor& copy) { return copy.is_same(known); });
    for (const at::Tensor& key : {parameter, part}) all.parts[key.unsafeGetTensorImpl()] = {&owner, part, !copied};
  }
  all.any = !all.parts.empty();
}

ShardedGradientsEntry::~ShardedGradientsEntry() {
  ScatteredGradients& all = scattered();
  const MutexLock lock(all.mutex);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto found = all.parts.find(parts_[i].first.unsafeGetTensorImpl());
    // The earlier owner may have ended first. It has then removed the parameter.
    if (earlier_[i].owner && found != all.parts.end() && found->second.owner == owner_) {
      found->second = earlier_[i];
    } else if (found != all.parts.end()) {
      all.parts.erase(found);
    }
    if (!parts_[i].second.is_same(parts_[i].first)) all.parts.erase(parts_[i].second.unsafeGetTensorImpl());
  }
  all.any = !all.parts.empty();
}

}  // namespace bellows
