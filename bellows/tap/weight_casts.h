#pragma once

namespace bellows::tap {

/// Makes autocast cache the casts of weights that operators receive as a transposed view. `torch::nn::Linear` and the
/// C++ attention modules call addmm(b, x, w.t()). libtorch caches the cast of a leaf but not of its view, so it casts w
/// in every call.
///
/// A guard affects `addmm`, `mm` and `matmul` on its thread while autocast's cache is on. It applies to arguments of
/// the form `w.t()`, where w is a trainable float32 leaf, and to the transpose of a range of rows of w. The operators
/// then read the cast of w from the cache and transpose it. In all other cases, they behave like libtorch's kernels.
/// Changes:  the first guard permanently replaces autocast's kernels of these three operators in the whole process
/// Numerics: values are the same as without the guard. Gradients are the same as with at::linear: if a weight is used
///           several times, its gradients are added in the low-precision dtype before they are cast to float32
/// Threads:  affects the current thread only and is not carried to other threads
/// Cost:     under autocast, each call of the three operators checks the base of each view
class WeightCastGuard {
 public:
  explicit WeightCastGuard(bool enabled = true);
  ~WeightCastGuard();
  WeightCastGuard(const WeightCastGuard&) = delete;
  WeightCastGuard& operator=(const WeightCastGuard&) = delete;

  /// Returns whether an enabled guard exists on this thread.
  static bool active();

 private:
  bool enabled_;
};

}  // namespace bellows::tap
