#pragma once

#include <cstdint>
#include <memory>

#include "bellows/parallel/hooks/gradient_hook.h"

/// Hooks that compute the mean of the gradients of n ranks. `Cost` states the number of bytes that each rank sends for
/// a bucket of N fp32 gradients. Each rank receives as many bytes as it sends (tests/parallel/hooks_test.cpp counts
/// them).
///
/// The result of a hook is bit-identical on all ranks. For PowerSGD, this requires that all ranks have the same type of
/// processor. If a gradient is infinite or NaN on one rank, all ranks get non-finite numbers, so amp::GradScaler skips
/// the step on all ranks. The errors for error feedback then stay unchanged. In a group of one rank, a hook computes
/// and copies nothing.
///
/// Use a separate hook for each model. Each rank has its own hook state, which can be restored only with the same
/// number of ranks and the same bucket size. In this state, the entry "error.0" belongs to the first parameter that the
/// first step used.
namespace bellows::parallel {

/// The exact mean: each rank divides its gradients by n, then the values of all ranks are added.
/// Numerics: like Python's DistributedDataParallel
/// Cost:     2 (n - 1) / n · 4 N bytes
/// Ref:      allreduce_hook
std::shared_ptr<GradientHook> all_reduce_hook();

/// The exact mean, with a sum in pairs of ranks: (0 + 1) + (2 + 3). Over Gloo, the sum rounds in the same way as if one
/// process had added the gradients of neighboring ranks before.
/// Cost: 2 (n - 1) / n · 4 N bytes, and a copy of the bucket if n does not divide N
std::shared_ptr<GradientHook> pairwise_hook();

/// Sends gradients as bf16 or fp16. Gradients that already have 16 bits are sent unchanged.
/// Numerics: gradients are divided by n before the cast, so the fp16 sum cannot overflow. Each of the n - 1 additions
///           rounds the result. The relative error is at most n · 2⁻⁹ for bf16, and n · 2⁻¹² for fp16 values above 6e-5
/// Cost:     2 (n - 1) / n · 2 N bytes
/// Ref:      bf16_compress_hook, fp16_compress_hook
std::shared_ptr<GradientHook> bf16_hook();
std::shared_ptr<GradientHook> fp16_hook();

struct Int8Options {
  bool error_feedback = true;  ///< add the rounding errors of a step to the gradients of the next step
};

/// Sends gradients as 8-bit integers. Each group of 256 adjacent gradients shares the scale max |g| / 127. Each rank
/// sums 1/n of the gradients in fp32, so no sum overflows, and then sends the result as 8-bit integers.
/// Numerics: in each group, the error of the mean is at most max |g| / 127. A non-finite gradient makes its group NaN
/// Cost:     2 (n - 1) / n · (1 + 1/64) N bytes, with N rounded up to a multiple of 256 n. Error feedback needs 4 N
///           bytes of memory
/// Ref:      arXiv:2102.02888 for error feedback in both directions
std::shared_ptr<GradientHook> int8_hook(const Int8Options& options = {});

struct PowerSgdOptions {
  int64_t rank = 1;  ///< usually 1 to 4; higher ranks need more time and send more bytes
  /// Earlier steps use the exact mean, because gradients are most sensitive to errors at the start of training.
  int64_t start_step = 1000;
  /// Tensors that would be compressed by a smaller factor use the exact mean. All vectors use the exact mean, too.
  double min_compression_rate = 2;
  bool error_feedback = true;  ///< add the approximation error of a step to the gradients of the next step
  bool warm_start = true;      ///< start from the projection of the previous step
  double epsilon = 0;          ///< value that is added to the norms of the columns
  uint32_t seed = 0;           ///< seed of the initial projections; must be the same on all ranks
  /// Compress all tensors of the same shape in one matmul. This is faster, but needs memory for a copy of the tensors.
  bool batch_same_shapes = false;
};

/// Views each gradient as a matrix [rows, columns] and approximates it by the product of two thin matrices, [rows, r]
/// and [r, columns].
/// Numerics: matches the trajectories of Python's hook over twelve steps (tests/parallel/hooks_test.cpp), with two
///           differences. First, a projection that became zero (unused layer) or NaN (overflow) is drawn again; in
///           Python, it stays zero or NaN. Second, tensors that use the exact mean have no error.
/// Cost:     2 (n - 1) / n · 4 · (sum of r (rows + columns) over compressed tensors, plus all other elements) bytes;
///           two matmuls per gradient. Errors and projections need memory
/// Throws:   c10::ValueError if an option is out of range. mean() throws it if the parameter sizes differ from those in
///           a restored state
/// Ref:      arXiv:1905.13727; powerSGD_hook
std::shared_ptr<GradientHook> power_sgd_hook(const PowerSgdOptions& options = {});

struct TopKOptions {
  /// Share of a bucket's gradients that each rank sends, largest absolute values first. At least one gradient is sent.
  double ratio = 0.01;
  bool error_feedback = true;  ///< add the gradients that were not sent to the gradients of the next step
};

/// Sends only the largest gradients of each rank, with their positions. The mean is zero at positions for which no rank
/// sent a value.
/// Cost:   (n - 1) · 8 · ratio · N bytes, which is less than for the exact mean only if ratio < 1 / n; one top-k
///         search. Error feedback needs 4 N bytes of memory
/// Throws: c10::ValueError if `ratio` is outside (0, 1]. mean() throws it if the parameter sizes differ from those in a
///         restored state
/// Ref:    arXiv:1712.01887
std::shared_ptr<GradientHook> top_k_hook(const TopKOptions& options = {});

}  // namespace bellows::parallel
