#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// Gradients that are exchanged together.
struct GradientBucket {
  int64_t index = 0;                   ///< index of the bucket in this step, in the order in which buckets become ready
  bool last = false;                   ///< whether this is the last bucket of the step
  at::Tensor flat;                     ///< [n]: this rank's gradients, concatenated
  std::vector<at::Tensor> gradients;   ///< views of `flat` with the parameters' shapes
  std::vector<at::Tensor> parameters;  ///< the parameters that the gradients belong to
};

/// Computes the mean of the ranks' gradients, either exactly or with less communication.
/// Threads: DistributedDataParallel calls the hook on one thread during backward, bucket by bucket, in the same order
///          on every rank. A hook may therefore call several collectives
/// Ref:     DistributedDataParallel.register_comm_hook
class GradientHook {
 public:
  virtual ~GradientHook() = default;

  /// Returns the mean of all ranks' `flat`, with the same shape and dtype. The hook may overwrite `flat` and return it.
  virtual at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) = 0;

  virtual std::string describe() const = 0;  ///< for example "PowerSGD, rank 4"

  /// Returns the hook's state on this rank, such as the errors for error feedback.
  virtual NamedTensors state() const { return {}; }
  /// Throws: c10::ValueError if the state belongs to another hook or to other parameters
  virtual void restore(const NamedTensors& state) {
    TORCH_CHECK_VALUE(state.empty(), "gradient hook ", describe(), ": expected no state, got ", state.front().first,
                      ". It belongs to another hook.");
  }
};

}  // namespace bellows::parallel
