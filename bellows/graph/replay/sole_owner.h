#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace bellows::graph::detail {

/// Finds out whether only the returned tensors of a function refer to their memory.
class SoleOwner {
 public:
  /// Params: returned – the caller has exactly one other reference to each of them
  explicit SoleOwner(const std::vector<at::Tensor>& returned);

  /// Returns whether the memory of a returned tensor is referenced only by returned tensors, and by tensors of which
  /// they are views.
  bool owns(const at::Tensor& returned) const;

 private:
  std::unordered_map<c10::TensorImpl*, uint32_t> known_;  ///< expected number of references
};

}  // namespace bellows::graph::detail
