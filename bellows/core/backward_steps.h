#pragma once

#include <memory>

namespace bellows {

/// Interface of optimizers that update parameters during backward themselves, such as sharded optimizers.
/// optim::step_in_backward() then uses this interface instead of hooks on the parameters.
class BackwardSteps {
 public:
  /// Returns a guard. While it exists, each backward pass updates the parameters and frees their gradients.
  virtual std::shared_ptr<void> step_in_backward() = 0;

  /// Error of functions that need gradients after backward.
  static constexpr const char* gradients_are_freed =
      "step_in_backward: the gradients no longer exist, because each was applied and freed when it arrived. Clipping "
      "by a norm, accumulation and a GradScaler need all gradients at once: end step_in_backward and call step(). bf16 "
      "needs no GradScaler.";
  static constexpr const char* needs_no_graph =
      "step_in_backward: create_graph is not supported, because the new graph would need the weights before the "
      "update. End step_in_backward before this backward pass.";

 protected:
  ~BackwardSteps() = default;
};

}  // namespace bellows
