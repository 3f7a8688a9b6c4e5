#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace bellows::recompute {

/// Treatment of an operator's outputs in a checkpointed function.
enum class CheckpointPolicy {
  must_save,         ///< keep the outputs, so that the second run does not compute them
  prefer_save,       ///< keep the outputs, unless the `budget` option of the same call decides otherwise
  prefer_recompute,  ///< recompute the outputs, unless the `budget` option decides otherwise
  must_recompute,    ///< recompute the outputs in the second run
  /// Pass the outputs to the surrounding OffloadGuard or CompressGuard. If there is none, keep them in memory.
  offload,
};

/// One operator call that a policy receives. Policies are called below autograd and autocast. At this level, matrix
/// multiplications are aten::mm, aten::addmm and aten::bmm.
struct CheckpointOp {
  std::string_view name;                   ///< for example "aten::mm"
  std::string_view overload;               ///< empty for operators without overloads
  const std::vector<at::Tensor>& outputs;  ///< use only their sizes, dtypes and devices
  int64_t bytes = 0;                       ///< total size of the outputs in bytes
};

/// Called for each operator whose outputs can be kept. Views and in-place operators are excluded.
using CheckpointRule = std::function<CheckpointPolicy(const CheckpointOp& op)>;

/// Policy that keeps the results of matrix multiplications, convolutions and attention, and recomputes all other
/// outputs. For a transformer, it saves most of the recomputation time, and needs about half of the memory that all
/// activations need.
/// Ref: torch.utils.checkpoint.create_selective_checkpoint_contexts
CheckpointPolicy save_products(const CheckpointOp& op);

}  // namespace bellows::recompute
