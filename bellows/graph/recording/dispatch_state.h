#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace bellows::graph {

/// The state of libtorch that kernels read in addition to their arguments. It includes state of the thread and of the
/// process. A deferred operator runs in the state in which it was called.
struct DispatchState {
  bool grad = true, inference = false, forward_grad = true;
  bool backward = false;  ///< whether autograd calls the operator; compared, but never restored
  bool deterministic = false, deterministic_warns = false, fill_uninitialized = true;
  bool onednn = true;
  c10::ScalarType default_dtype = c10::kFloat, autocast_cpu = c10::kBFloat16, autocast_cuda = c10::kHalf;
  uint64_t included = 0, excluded = 0;  ///< dispatch keys, except those of the taps

  /// Captures the state of the calling thread.
  static DispatchState capture();
  bool operator==(const DispatchState& other) const = default;
  /// Describes the difference for messages, such as "grad mode off instead of on". The text is empty if the states are
  /// equal.
  std::string difference(const DispatchState& recorded) const;
};

/// Returns the precision of fp32 matmuls, convolutions and recurrent layers on the CPU (`Context::float32Precision`) as
/// one number.
int float32_precision();

/// Applies a captured state while this object exists. The destructor restores the previous state of the thread.
class DispatchStateScope {
 public:
  DispatchStateScope(const DispatchState& state, int float32_precision);
  ~DispatchStateScope();
  DispatchStateScope(const DispatchStateScope&) = delete;
  DispatchStateScope& operator=(const DispatchStateScope&) = delete;

 private:
  struct Kept;
  std::unique_ptr<Kept> kept_;
};

}  // namespace bellows::graph
