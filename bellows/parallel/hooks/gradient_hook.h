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
  int64_t index = 0;                   ///< index among the step's buckets, in the order in which they become ready
  bool last = false;                   ///< the last bucket of the step
  at::Tensor flat;                     ///< [n]: this rank's gradients, concatenated
  std::vector<at::Tensor> gradients;   ///< views of `flat` in the parameters' shapes
  std::vector<at::Tensor> parameters;  ///< the parameters of the gradients
};

/// Computes the mean of the ranks' gradients, exactly or with fewer bytes.
/// Threads: one thread of DistributedDataParallel calls it during backward, bucket by bucket, in the same order on
///          every rank. So it may call several collectives
/// Ref:     DistributedDataParallel.register_comm_hook
class GradientHook {
 public:
  virtual ~GradientHook() = default;

  /// Returns the mean of the ranks' `flat`, in its shape and dtype. It may overwrite and return `flat`.
  virtual at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) = 0;

  virtual std::string describe() const = 0;  ///< "PowerSGD, rank 4"

  /// The state of the hook on this rank, such as the errors that it feeds back.
  virtual NamedTensors state() const { return {}; }
  /// Throws: c10::ValueError if the state belongs to another hook or to other parameters
  virtual void restore(const NamedTensors& state) {
    TORCH_CHECK_VALUE(state.empty(), "gradient hook ", describe(), ": expected no state, got ", state.front().first,
                      ". It is another hook's.");
  }
};

}  // namespace bellows::parallel
