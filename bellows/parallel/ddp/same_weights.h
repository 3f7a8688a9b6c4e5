#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/named_state.h"

namespace bellows::parallel {

/// Returns one number per rank and parameter, [ranks, parameters] of dtype int64. Equal weights have equal numbers. All
/// ranks of the group must call this function.
at::Tensor weight_digests(const NamedTensors& parameters, const comm::Group& group);
/// Returns the first rank whose weights differ from those of rank 0, and the number of its first such parameter.
/// Params: digests – the result of weight_digests()
std::optional<std::pair<int64_t, size_t>> first_difference(const at::Tensor& digests);

/// Detects ranks whose weights have diverged because an exception ended a step on only some of the ranks. At the start
/// of each backward pass, the ranks compare which parameters were written since the previous pass. If the sets differ,
/// the ranks compare the values of all parameters.
/// Cost:    one int64 per rank and backward pass, exchanged during backward
/// Threads: not thread-safe; the hooks run on autograd's threads
class SameWeights {
 public:
  /// Params: group – the group that exchanges the gradients, because the comparison must come before the exchange of
  ///                 the buckets
  SameWeights(NamedTensors parameters, const comm::Group& group);

  /// At the start of the next backward pass from `outputs`, calls `began`, then compares the ranks.
  void watch(const std::vector<at::Tensor>& outputs, std::function<void()> began);
  /// Throws: c10::Error if the weights differ, or if an exception ended the last backward pass. All later calls throw,
  ///         too
  void check() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
