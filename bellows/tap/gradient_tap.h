#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace bellows::tap {

/// Tells when a backward pass has added its share to a parameter's gradient: `parameter.grad()` is complete as far as this
/// pass goes, and may be taken away. libtorch has room for one such hook a tensor.
/// Threads: called by the thread of autograd that works for the parameter's device, on the CPU the one that called
///          backward(); for several parameters perhaps at once. What it throws ends the backward pass
/// Ref:     Tensor.register_post_accumulate_grad_hook
class GradientTap {
 public:
  using Arrived = std::function<void(const at::Tensor& parameter)>;
  /// Throws: c10::ValueError – no leaf that requires a gradient, or one that has such a hook already
  GradientTap(at::Tensor parameter, Arrived arrived);
  ~GradientTap();
  GradientTap(const GradientTap&) = delete;
  GradientTap& operator=(const GradientTap&) = delete;

 private:
  at::Tensor parameter_;
};

/// Number of the backward pass that this thread works for; -1 outside. A pass inside a pass has its own.
int64_t backward_id();

/// Calls `done` when that pass has come to its end; destroys it uncalled when the pass ends by an exception.
/// Throws: c10::Error – outside of backward
void at_end_of_backward(std::function<void()> done);

}  // namespace bellows::tap
