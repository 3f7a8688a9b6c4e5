#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/named_state.h"

namespace bellows::parallel {

/// Detects ranks whose weights diverge because an exception ended a step on some of them. At the start of each backward
/// pass, the ranks compare which parameters were written since the last pass. If that differs, they compare the values.
/// Cost:    one int64 per rank and backward pass, exchanged during backward
/// Threads: one owner; autograd's threads call the hooks
class SameWeights {
 public:
  /// Params: group – that of the gradients, because the comparison precedes the exchange of the buckets
  SameWeights(NamedTensors parameters, const comm::Group& group);

  /// In the next backward pass from `outputs`, calls `began`, then compares.
  void watch(const std::vector<at::Tensor>& outputs, std::function<void()> began);
  /// Throws: c10::Error if the weights differ or an exception ended the last backward pass; all later calls throw, too
  void check() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
