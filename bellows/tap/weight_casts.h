#pragma once

namespace bellows::tap {

/// Lets autocast's cache serve weights that arrive as a transposed view. `torch::nn::Linear` and C++ attention modules
/// call addmm(b, x, w.t()). libtorch caches the cast of a leaf, but not of its view, and would cast w in every call.
///
/// A guard affects `addmm`, `mm` and `matmul` on its thread while autocast's cache is on. If an argument is `w.t()` of
/// a trainable float32 leaf w, or the transpose of a range of its rows, they take w's cast from the cache and transpose
/// it. In all other cases they do the same as libtorch's kernels.
/// Changes:  the first guard permanently replaces autocast's kernels of these three operators in the whole process
/// Numerics: values as without the guard. Gradients as at::linear's: if a weight is used several times, its gradients
///           are added in the low-precision dtype before they are cast to float32.
/// Threads:  affects the current thread only; not carried to other threads
/// Cost:     checks the base of each view at every call of the three operators under autocast
class WeightCastGuard {
 public:
  explicit WeightCastGuard(bool enabled = true);
  ~WeightCastGuard();
  WeightCastGuard(const WeightCastGuard&) = delete;
  WeightCastGuard& operator=(const WeightCastGuard&) = delete;

  /// True if an enabled guard lives on this thread.
  static bool active();

 private:
  bool enabled_;
};

}  // namespace bellows::tap
