#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/quant/layer.h"

namespace bellows::quant {

/// Returns the memory of a tensor, or null if it has none. Views share memory.
const c10::StorageImpl* storage_of(const at::Tensor& tensor);

/// Finds parameters and buffers of a model by their memory, which views such as `w.t()` share. Tensors may be parts of one
/// buffer, such as parameters with ZeRO.
class TensorNames {
 public:
  explicit TensorNames(const NamedTensors& tensors);

  struct Entry {
    std::string name;
    at::Tensor tensor;
  };
  /// Returns the tensor in whose memory the view begins, or null. If several tensors overlap, it is the first one.
  const Entry* find(const at::Tensor& view) const;
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
  std::map<std::pair<const c10::StorageImpl*, int64_t>, size_t> places_;  ///< by memory and offset
};

/// Returns whether `seen` covers the whole tensor in its own order, or, if `transposed`, in the order of its transpose.
bool is_whole(const at::Tensor& tensor, const at::Tensor& seen, bool transposed);

/// Returns the name of a layer from the name of its weight: "fc" for "fc.weight". Other names stay unchanged, such as
/// "in_proj_weight".
std::string layer_name(const std::string& parameter);
/// Returns the beginning of the names of a layer's other tensors: "fc." for "fc.weight", "" for "weight", and
/// "in_proj_weight_" for "in_proj_weight".
std::string tensor_prefix(const std::string& parameter);

/// Returns whether the name matches the pattern, in which "*" is any text.
bool matches_name(std::string_view pattern, std::string_view name);
/// Throws: c10::ValueError if a pattern matches none of the names (the message suggests the nearest name)
void check_patterns(const std::vector<std::string>& patterns, const std::vector<std::string>& names);

/// Returns the operator's running mean if it is a batch norm in evaluation mode, otherwise an undefined tensor.
at::Tensor norm_in_evaluation(const tap::OpRef& op, std::span<c10::IValue> arguments);

}  // namespace bellows::quant
