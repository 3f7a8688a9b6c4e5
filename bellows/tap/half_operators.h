#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace bellows::tap {

/// Kinds of CPU operators whose speed in fp16 depends on the processor.
enum class HalfOperator {
  matmul,                ///< mm, addmm, bmm and baddbmm, hence also linear, matmul and einsum, and their gradients
  matrix_vector,         ///< mv and addmv
  convolution,           ///< all convolutions, forward
  convolution_backward,  ///< their gradients
};

/// The features of a processor that determine the speed of libtorch's fp16 kernels.
struct HalfFeatures {
  /// libtorch runs fp16 matmuls in oneDNN. It requires instructions such as AVX512-FP16.
  bool onednn = false;
};

/// Returns the features of this processor, as limited by the environment variable ONEDNN_MAX_CPU_ISA.
HalfFeatures half_features();

/// Whether it is faster to convert fp16 operands to fp32, run the operator in fp32 and round the result to fp16.
/// Without oneDNN, all libtorch kernels of these operators are slow in fp16. With oneDNN, its matmuls are as fast as
/// in fp32, but convolutions and products with vectors are slower.
bool converts_half(HalfOperator op, const HalfFeatures& features);

/// Makes fp16 matmuls and convolutions on the CPU nearly as fast as fp32 ones. They take 1.0 to 1.6 times the time of
/// fp32, because operands are converted (bench/half).
///
/// While a guard exists on this thread, CPU operators of the kinds in HalfOperator whose operands are fp16 run in fp32
/// if converts_half() says so. In all other cases, libtorch's kernels run. From the first guard on, the gradients of
/// such operators do the same during backward, on all threads and also after the guard has ended, because backward
/// usually runs outside of the guard. Other fp16 operators of the process, and in-place variants, stay unchanged.
/// Changes:  the first guard permanently replaces libtorch's CPU kernels of these operators in the whole process.
///           Without a guard, the kernels behave like libtorch's
/// Numerics: sums are computed in fp32 and rounded to fp16 once. Results above 65,504 become infinite, as with each
///           rounding to fp16
/// Threads:  affects the current thread and, in backward, all threads. Destroy guards on the thread that created them
/// Cost:     operators that convert allocate fp32 copies of their operands while they run
class FastHalfGuard {
 public:
  explicit FastHalfGuard(bool enabled = true);
  ~FastHalfGuard();
  FastHalfGuard(const FastHalfGuard&) = delete;
  FastHalfGuard& operator=(const FastHalfGuard&) = delete;

  /// Returns whether an enabled guard exists on this thread.
  static bool active();
  /// Returns how many operators have run in fp32 in this process because of a guard.
  static int64_t converted();

 private:
  bool enabled_;
};

/// Uses `features` instead of those of this processor. Null restores the default. For tests.
/// Threads: thread-safe; affects all threads
void set_half_features(std::optional<HalfFeatures> features);

}  // namespace bellows::tap
