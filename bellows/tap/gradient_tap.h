#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace bellows::tap {

/// Calls a function when a backward pass has added its contribution to a parameter's gradient. At that point,
/// `parameter.grad()` is complete for this pass and may be moved or reset. libtorch supports one such hook per tensor.
/// Threads: called on the autograd thread of the parameter's device. For the CPU, this is the thread that called
///          backward(). Calls for several parameters may be concurrent. An exception ends the backward pass
/// Ref:     Tensor.register_post_accumulate_grad_hook
class GradientTap {
 public:
  using Arrived = std::function<void(const at::Tensor& parameter)>;
  /// Throws: c10::ValueError if `parameter` is not a leaf that requires a gradient, or already has such a hook
  GradientTap(at::Tensor parameter, Arrived arrived);
  ~GradientTap();
  GradientTap(const GradientTap&) = delete;
  GradientTap& operator=(const GradientTap&) = delete;

 private:
  at::Tensor parameter_;
};

/// Returns the number of the backward pass that this thread executes, or -1 outside of backward. A nested pass has a
/// separate number.
int64_t backward_id();

/// Calls `done` when the current backward pass ends. If the pass ends with an exception, `done` is destroyed but not
/// called.
/// Throws: c10::Error outside of backward
void at_end_of_backward(std::function<void()> done);

}  // namespace bellows::tap
