#pragma once

namespace bellows::tap {

/// While a guard exists on this thread, at::dropout draws its mask as a bool tensor, and casts the mask to the dtype of
/// the input afterwards. A compiled function therefore stores 1 byte per element of the mask instead of 4, because only
/// the drawing runs immediately. Dropout on other devices, in inference mode, or with p = 0 or p = 1, and dropout_ and
/// feature_dropout, are unchanged.
/// Changes:  the first guard permanently replaces the kernel of at::dropout for CPU tensors in the whole process.
///           Without a guard, the kernel behaves like libtorch's
/// Numerics: values, gradients and the state of the generator are bit-identical to libtorch's
/// Cost:     one additional operator, the cast
/// Threads:  affects the current thread only and is not carried to other threads
class ByteDropoutGuard {
 public:
  explicit ByteDropoutGuard(bool enabled = true);
  ~ByteDropoutGuard();
  ByteDropoutGuard(const ByteDropoutGuard&) = delete;
  ByteDropoutGuard& operator=(const ByteDropoutGuard&) = delete;

 private:
  bool enabled_;
};

}  // namespace bellows::tap
