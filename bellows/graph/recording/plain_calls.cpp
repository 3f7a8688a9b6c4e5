#include "bellows/graph/recording/plain_calls.h"

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/hash.h>

#include <algorithm>

namespace bellows::graph::detail {
namespace {

size_t hash_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  size_t hash = tensor.key_set().raw_repr();
  hash = c10::hash_combine(hash, static_cast<size_t>(tensor.scalar_type()));
  hash = c10::hash_combine(hash, tensor.requires_grad());
  if (tensor.layout() != c10::kStrided) return hash;
  for (const int64_t size : tensor.sizes()) hash = c10::hash_combine(hash, size);
  for (const int64_t stride : tensor.strides()) hash = c10::hash_combine(hash, stride);
  return hash;
}

}  // namespace

uint64_t PlainCalls::kind_of_call(std::span<const at::Tensor* const> arguments) const {
  if (!any_in_vain_) return 0;
  // DispatchState::capture() would take longer, because it also reads settings of the process.
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  size_t hash = c10::hash_combine(keys.included_.raw_repr(), keys.excluded_.raw_repr());
  hash = c10::hash_combine(hash, autograd.get_grad_mode() * 2 + autograd.get_inference_mode());
  for (const at::Tensor* argument : arguments) hash = c10::hash_combine(hash, hash_of(*argument));
  return std::max<uint64_t>(hash, 1);
}

bool PlainCalls::take(uint64_t kind) {
  const auto found = kinds_.find(kind);
  if (found == kinds_.end() || found->second.left == 0) return false;
  --found->second.left;
  return true;
}

void PlainCalls::note(uint64_t kind, bool in_vain) {
  any_in_vain_ = any_in_vain_ || in_vain;
  if (kind == 0) return;
  if (!in_vain) {
    kinds_.erase(kind);
    return;
  }
  if (kinds_.size() == most_kinds) kinds_.clear();
  Streak& streak = kinds_[kind];
  streak.length = std::clamp(growth * streak.length, 1, longest);
  streak.left = streak.length;
}

void PlainCalls::note_first(std::span<const at::Tensor* const> arguments, bool in_vain) {
  any_in_vain_ = any_in_vain_ || in_vain;
  if (in_vain) note(kind_of_call(arguments), true);
}

}  // namespace bellows::graph::detail
