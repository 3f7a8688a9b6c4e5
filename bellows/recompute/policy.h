#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace bellows::recompute {

/// The treatment of an operator's outputs in a checkpointed function.
enum class CheckpointPolicy {
  must_save,         ///< keep the outputs; the second run does not compute them
  prefer_save,       ///< keep, unless a budget decides otherwise
  prefer_recompute,  ///< recompute, unless a budget decides otherwise
  must_recompute,    ///< recompute in the second run
  offload,           ///< keep by the surrounding OffloadGuard or CompressGuard; in memory if there is none
};

/// One operator call as a policy receives it: below autograd and autocast. Matrix multiplications are therefore
/// aten::mm, aten::addmm and aten::bmm.
struct CheckpointOp {
  std::string_view name;                   ///< "aten::mm"
  std::string_view overload;               ///< "" for operators without overloads
  const std::vector<at::Tensor>& outputs;  ///< for their sizes, dtypes and devices
  int64_t bytes = 0;                       ///< total size of the outputs
};

/// Called for each operator whose outputs can be kept; not for views and in-place operators.
using CheckpointRule = std::function<CheckpointPolicy(const CheckpointOp& op)>;

/// Keeps the results of matrix multiplications, convolutions and attention, and recomputes all other outputs. Saves
/// most of the recomputation time for about half of the memory of a transformer.
/// Ref: torch.utils.checkpoint.create_selective_checkpoint_contexts
CheckpointPolicy save_products(const CheckpointOp& op);

}  // namespace bellows::recompute
