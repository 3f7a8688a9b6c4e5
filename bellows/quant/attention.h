#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "bellows/quant/layer_table.h"
#include "bellows/tap/op_ref.h"

namespace bellows::quant {

/// An operator call whose two matmuls can multiply integers (quantized_attention() in operators.h).
struct AttentionCall {
  at::Tensor query{}, key{}, value{};  ///< fp32 [batch, heads, rows or keys, width]
  std::optional<double> scale{};
};

/// Returns the call if the operator is libtorch's fused attention on the CPU, without mask, causal order and dropout.
std::optional<AttentionCall> attention_call(const tap::OpRef& op, std::span<c10::IValue> arguments);

/// The layers whose results are in memory, so that attention finds the layers of its operands. Views share memory. The memory
/// can be freed while the table exists.
/// Threads: not thread-safe
template <class Layer>
class LayerResults {
 public:
  void note(const at::Tensor& result, Layer layer) {
    const c10::Storage& storage = result.storage();
    results_.insert_or_assign(storage.unsafeGetStorageImpl(), Result{storage.getWeakStorageImpl(), std::move(layer)});
  }
  /// Returns the layer, or null.
  const Layer* find(const at::Tensor& view) const {
    const auto found = results_.find(storage_of(view));
    return found == results_.end() ? nullptr : &found->second.layer;
  }
  void clear() { results_.clear(); }

 private:
  struct Result {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;  // so that no other tensor gets its address
    Layer layer;
  };
  std::unordered_map<const c10::StorageImpl*, Result> results_;
};

}  // namespace bellows::quant
