#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::recompute {

struct PartitionOptions {
  int64_t min_bytes = 64 << 10;  ///< smaller tensors are kept completely on each rank
  /// Also divides the outputs that checkpointed calls keep because of a policy. Set this to false if these outputs
  /// differ between the ranks, for example in layers that the ranks of the group divide among them. Outputs that a
  /// budget keeps are not divided, because a budget depends on times that each rank measures.
  bool kept_outputs = true;
  /// Compares a hash of the values of each tensor in all forward passes. By default, the ranks compare values only in
  /// the forward pass before the first backward pass, and later only sizes, strides and dtypes.
  bool check_values = false;
  /// Tensors that each rank keeps completely. Tensors that share memory with them are not divided, either.
  std::vector<at::Tensor> leave = {};
};

/// Statistics of a guard since it was created.
struct PartitionStats {
  int64_t tensors = 0, bytes = 0;  ///< number of divided tensors, and their complete size
  int64_t kept_bytes = 0;          ///< size of this rank's slices of these tensors
  int64_t gathered = 0;            ///< number of times that the ranks gathered a tensor
  int64_t sent_bytes = 0;          ///< bytes that this rank sent to gather tensors
  int64_t gathered_in_time = 0;    ///< number of tensors that were available when backward requested them
};

/// While this guard exists on a thread, the ranks of a group divide the tensors that checkpoint() keeps for backward.
/// These are the inputs of checkpointed calls, and the outputs that these calls keep because of a policy. Each of n
/// ranks keeps one slice of 1/n of each tensor. In backward, the ranks gather a tensor before the second run needs it.
/// A background thread gathers the next tensor during the second run, in the reverse order of forward. Create the guard
/// around the complete training.
///
/// **These tensors must have the same values on all ranks of the group.** This holds for ranks that work on the same
/// samples, such as the ranks of tensor parallelism. It does not hold for ranks that read different samples. All ranks
/// must run the same checkpointed calls, and the same backward passes, in the same order. Before each gathering, the
/// ranks compare the number, sizes, strides and dtype of the tensor. They compare hashes of the values in the forward
/// pass before the first backward pass, or always with `check_values`.
///
/// The guard does not divide parameters and other tensors that saved-tensor taps skip (tap/saved_tensor_tap.h), tensors
/// in `leave`, or tensors below `min_bytes`. Tensors that autograd saves outside of checkpointed calls are not divided.
/// The same applies to tensors of nested checkpointed calls, which exist only during the second run of the outer call.
/// Surrounding guards receive the slices. For example, a surrounding OffloadGuard writes each rank's slices to disk.
/// Numerics: gradients are bit-identical to those of checkpoint() without this guard
///           (tests/recompute/partition_test.cpp)
/// Cost:     each rank keeps ceil(elements / n) elements of a tensor. Each time that a second run needs a tensor, each
///           rank sends and receives n - 1 slices, and n - 1 times 128 bytes for the comparison. Backward needs memory
///           for one more complete tensor, which is gathered in advance. A group of one rank has no cost
/// Threads:  affects the thread that creates the guard; create and destroy it on the same thread. The ranks may run one
///           backward pass at a time
/// Throws:   creating the guard is collective and throws like comm::duplicate(). c10::ValueError if `min_bytes` is
///           below 1. Backward throws c10::ValueError on all ranks if the tensors of the ranks differ; the message
///           names the tensor and a rank. It throws c10::Error if a rank failed, ended, or does not run the same
///           backward pass before the World's timeout. After an error, create a new guard on all ranks
/// Ref:      arXiv:1910.02054, section 6.1 (ZeRO-R)
class PartitionGuard {
 public:
  explicit PartitionGuard(const comm::Group& group, const PartitionOptions& options = {});
  ~PartitionGuard();
  PartitionGuard(const PartitionGuard&) = delete;
  PartitionGuard& operator=(const PartitionGuard&) = delete;

  PartitionStats stats() const;

  class Tap;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace bellows::recompute
