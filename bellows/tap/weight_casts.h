#pragma once

namespace bellows::tap {

/// Lets autocast's cache serve weights that arrive as a transposed view. `torch::nn::Linear` and the attention of C++
/// call addmm(b, x, w.t()); libtorch caches the cast of a leaf but not of its view, so it would cast w at every call.
///
/// While a guard lives on the thread and autocast's cache is on, `addmm`, `mm` and `matmul` look through `w.t()`
/// (and through the transpose of a range of w's rows) to the trainable float32 leaf w, take w's cast from the cache and
/// transpose that. In all other cases they do what libtorch's kernels do.
/// Changes:  the first guard replaces autocast's kernels of these three operators, in the whole process and for good
/// Numerics: values as without it. Gradients as at::linear's: those of several uses of one weight are added up in the
///           low dtype before they are cast to float32
/// Threads:  per thread; not carried to others
/// Cost:     a look at what each matrix is a view of, at every call of the three operators under autocast
class WeightCastGuard {
 public:
  explicit WeightCastGuard(bool enabled = true);
  ~WeightCastGuard();
  WeightCastGuard(const WeightCastGuard&) = delete;
  WeightCastGuard& operator=(const WeightCastGuard&) = delete;

  /// A guard that is enabled lives on this thread.
  static bool active();

 private:
  bool enabled_;
};

}  // namespace bellows::tap
