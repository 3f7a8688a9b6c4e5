#include "bellows/quant/layer_table.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "bellows/core/error.h"

namespace bellows::quant {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

namespace {

/// Returns the offset behind the last element.
int64_t end_of(const at::Tensor& tensor) {
  int64_t end = tensor.storage_offset() + (tensor.numel() > 0 ? 1 : 0);
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    end += std::max<int64_t>(tensor.size(dim) - 1, 0) * tensor.stride(dim);
  return end;
}

}  // namespace

TensorNames::TensorNames(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const c10::StorageImpl* const storage = storage_of(tensor);
    if (!storage) continue;
    const auto next = places_.upper_bound({storage, tensor.storage_offset()});
    const bool before_next =
        next == places_.end() || next->first.first != storage || end_of(tensor) <= next->first.second;
    const Entry* const previous = find(tensor);
    if (!before_next || (previous && end_of(previous->tensor) > tensor.storage_offset())) continue;
    // Does not replace an empty tensor at the same place.
    if (places_.try_emplace({storage, tensor.storage_offset()}, entries_.size()).second)
      entries_.push_back({name, tensor});
  }
}

const TensorNames::Entry* TensorNames::find(const at::Tensor& view) const {
  const c10::StorageImpl* const storage = storage_of(view);
  if (!storage) return nullptr;
  auto found = places_.upper_bound({storage, view.storage_offset()});
  if (found == places_.begin()) return nullptr;
  --found;
  return found->first.first == storage ? &entries_[found->second] : nullptr;
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

bool matches_name(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t at = star; at <= name.size(); ++at) {
    if (matches_name(rest, name.substr(at))) return true;
  }
  return false;
}

void check_patterns(const std::vector<std::string>& patterns, const std::vector<std::string>& names) {
  for (const std::string& pattern : patterns) {
    const bool used =
        std::any_of(names.begin(), names.end(), [&](const auto& name) { return matches_name(pattern, name); });
    const std::string near = nearest_match(pattern, names);
    TORCH_CHECK_VALUE(used, "quantization: `skip`: no layer has the name \"", pattern, "\".",
                      near.empty() ? "" : " Did you mean \"" + near + "\"?");
  }
}

at::Tensor norm_in_evaluation(const tap::OpRef& op, std::span<c10::IValue> arguments) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::native_batch_norm", "");
  if (op.handle() != handle || !arguments[3].isTensor() || arguments[5].toBool()) return {};
  return arguments[3].toTensor();
}

}  // namespace bellows::quant
