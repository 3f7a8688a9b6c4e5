#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace bellows::graph {

/// The state of libtorch, of the thread and of the process, that kernels read beside their arguments. An operator that runs later than it
/// was called runs under the state it was called in.
struct Ambient {
  bool grad = true, inference = false, forward_grad = true;
  bool backward = false;  ///< autograd calls: told, never put in place
  bool deterministic = false, deterministic_warns = false, fill_uninitialized = true;
  bool onednn = true;
  c10::ScalarType default_dtype = c10::kFloat, autocast_cpu = c10::kBFloat16, autocast_cuda = c10::kHalf;
  uint64_t included = 0, excluded = 0;  ///< dispatch keys, but for those of the taps

  /// That of the calling thread.
  static Ambient capture();
  bool operator==(const Ambient& other) const = default;
  /// "grad mode off instead of on", for messages; "" when equal.
  std::string difference(const Ambient& recorded) const;
};

/// Precision that fp32 products and convolutions may take on a CPU (`Context::float32Precision`), in one number.
int float32_precision();

/// Puts a captured state in place while it lives, then the thread's own again.
class AmbientScope {
 public:
  AmbientScope(const Ambient& state, int float32_precision);
  ~AmbientScope();
  AmbientScope(const AmbientScope&) = delete;
  AmbientScope& operator=(const AmbientScope&) = delete;

 private:
  struct Kept;
  std::unique_ptr<Kept> kept_;
};

}  // namespace bellows::graph
