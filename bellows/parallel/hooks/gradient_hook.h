#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// Gradients that travel together.
struct GradientBucket {
  int64_t index = 0;                   ///< of the step's buckets, in the order in which they become ready
  bool last = false;                   ///< of the step
  at::Tensor flat;                     ///< [n]: this rank's gradients, one behind the other
  std::vector<at::Tensor> gradients;   ///< views of `flat` in the parameters' shapes
  std::vector<at::Tensor> parameters;  ///< what they are the gradients of
};

/// How the ranks' gradients become their mean: exactly, or with fewer bytes.
/// Threads: one thread of DistributedDataParallel calls it while backward goes on, bucket after bucket, in the same order
///          on every rank. So it may call several collectives in a row
/// Ref:     DistributedDataParallel.register_comm_hook
class GradientHook {
 public:
  virtual ~GradientHook() = default;

  /// The mean of the ranks' `flat`, in its shape and dtype; it may be `flat` itself, overwritten.
  virtual at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) = 0;

  virtual std::string describe() const = 0;  ///< "PowerSGD, rank 4"

  /// What the hook carries from step to step on this rank, such as the errors that it feeds back.
  virtual NamedTensors state() const { return {}; }
  /// Throws: c10::ValueError – state of another hook or other parameters
  virtual void restore(const NamedTensors& state);
};

}  // namespace bellows::parallel
