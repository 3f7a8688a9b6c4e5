#pragma once

#include <cstdint>

namespace bellows::nn {

/// Draws random numbers on the CPU faster than libtorch, with bit-identical values and generator states.
///
/// While at least one enabled guard exists, `bernoulli_`, `uniform_`, `normal_`, `random_` and `randperm` of CPU tensors
/// use the kernels of kernels/random.h on all threads of the process. Operators that are composed of these are included:
/// dropout, `rand`, `randn`, `randint`, initialization. Create one guard at the start of a program, or one around a
/// training loop. All other cases run libtorch's kernels: fewer than 128 values, `normal_` into tensors that are not
/// contiguous, complex tensors, other devices, and arguments for which libtorch reports an error.
/// Numerics: bit-identical to libtorch. When a kind of value is first drawn, a sample of it is compared with libtorch's.
///           If libtorch computes it in a different way on this processor (for example, `bernoulli_` with the
///           generator of MKL), libtorch's kernel stays in use
/// Cost:     `bernoulli_` about 0.7 ns per value on one core, where libtorch needs 9 (bench/random)
///           A guard costs a few ns. The first one permanently replaces libtorch's kernels (tap/random_operators.h)
/// Threads:  guards may be created and destroyed on any thread, in any order
class FastRandomGuard {
 public:
  explicit FastRandomGuard(bool enabled = true);
  ~FastRandomGuard();
  FastRandomGuard(const FastRandomGuard&) = delete;
  FastRandomGuard& operator=(const FastRandomGuard&) = delete;

  /// Returns whether an enabled guard exists in the process.
  static bool active();
  /// Returns how many operators the kernels of Bellows have performed in this process. All others ran libtorch's
  /// kernels.
  static int64_t performed();

 private:
  bool enabled_;
};

}  // namespace bellows::nn
