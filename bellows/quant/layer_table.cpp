#include "bellows/quant/layer_table.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace bellows::quant {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

TensorNames::TensorNames(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const c10::StorageImpl* const storage = storage_of(tensor);
    if (!storage || !places_.try_emplace(storage, entries_.size()).second) continue;
    entries_.push_back({name, tensor});
  }
}

const TensorNames::Entry* TensorNames::find(const at::Tensor& view) const {
  const auto found = places_.find(storage_of(view));
  return found == places_.end() ? nullptr : &entries_[found->second];
}

bool is_whole(const at::Tensor& tensor, const at::Tensor& seen, bool transposed) {
  if (seen.storage_offset() != tensor.storage_offset() || seen.dim() != tensor.dim()) return false;
  if (!transposed) return seen.sizes() == tensor.sizes() && seen.strides() == tensor.strides();
  return tensor.dim() == 2 && seen.size(0) == tensor.size(1) && seen.size(1) == tensor.size(0) &&
         seen.stride(0) == tensor.stride(1) && seen.stride(1) == tensor.stride(0);
}

std::string layer_name(const std::string& parameter) {
  constexpr std::string_view ending = ".weight";
  return parameter.ends_with(ending) ? parameter.substr(0, parameter.size() - ending.size()) : parameter;
}

std::string tensor_prefix(const std::string& parameter) {
  if (parameter == "weight") return "";
  return parameter.ends_with(".weight") ? layer_name(parameter) + "." : parameter + "_";
}

at::Tensor norm_in_evaluation(const tap::OpRef& op, std::span<c10::IValue> arguments) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::native_batch_norm", "");
  if (op.handle() != handle || !arguments[3].isTensor() || arguments[5].toBool()) return {};
  return arguments[3].toTensor();
}

}  // namespace bellows::quant
