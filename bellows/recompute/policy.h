#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace bellows::recompute {

/// What becomes of an operator's outputs in a checkpointed function.
enum class CheckpointPolicy {
  must_save,         ///< kept; the second run does not compute it
  prefer_save,       ///< kept, unless a budget decides otherwise
  prefer_recompute,  ///< computed again, unless a budget decides otherwise
  must_recompute,    ///< computed again
  offload,           ///< kept in the way of the guards around the region: `offload`, `compress`; without one, in memory
};

/// One operator as a policy sees it: below autograd and autocast, so matrix products are aten::mm, aten::addmm, aten::bmm.
struct CheckpointOp {
  std::string_view name;                   ///< "aten::mm"
  std::string_view overload;               ///< "" where the operator has none
  const std::vector<at::Tensor>& outputs;  ///< for their sizes, dtypes, devices
  int64_t bytes = 0;                       ///< of the outputs
};

/// Asked for each operator whose outputs could be kept: no views, nothing that works in place.
using CheckpointRule = std::function<CheckpointPolicy(const CheckpointOp& op)>;

/// Keeps what matrix products, convolutions and attention compute, and computes all else again: most of the time for
/// about half of the memory of a transformer.
/// Ref: torch.utils.checkpoint.create_selective_checkpoint_contexts
CheckpointPolicy save_products(const CheckpointOp& op);

}  // namespace bellows::recompute
