#pragma once

#include <cstdint>
#include <memory>

#include "bellows/parallel/hooks/gradient_hook.h"

/// Hooks that compute the mean of n ranks' gradients. Cost is the number of bytes that each rank sends for a bucket of
/// N fp32 gradients; it receives the same number (tests/parallel/hooks_test.cpp counts them).
///
/// For all hooks, the result is bit-identical on every rank. If a gradient is infinite or NaN on one rank, all ranks
/// get non-finite numbers, so that amp::GradScaler skips the step everywhere. Errors that are fed back then keep their
/// previous values. In a group of one, nothing is computed or copied.
///
/// A hook belongs to one model. Its state is that of one rank ("error.0": of the first parameter in the first step). It
/// can be restored with the same number of ranks and the same bucket size.
namespace bellows::parallel {

/// The exact mean: each rank divides by n, then the ranks' values are added.
/// Numerics: like Python's DistributedDataParallel
/// Cost:     2 (n - 1) / n · 4 N bytes
/// Ref:      allreduce_hook
std::shared_ptr<GradientHook> all_reduce_hook();

/// Sends bf16 or fp16. 16-bit gradients are sent unchanged.
/// Numerics: gradients are divided by n before the cast, so that the fp16 sum cannot overflow. Each of the n - 1
///           additions rounds: relative error up to n · 2⁻⁹ (bf16), n · 2⁻¹² (fp16, for values above 6e-5)
/// Cost:     2 (n - 1) / n · 2 N bytes
/// Ref:      bf16_compress_hook, fp16_compress_hook
std::shared_ptr<GradientHook> bf16_hook();
std::shared_ptr<GradientHook> fp16_hook();

struct Int8Options {
  bool error_feedback = true;  ///< add the rounding errors to the next step's gradients
};

/// Sends 8-bit integers: groups of 256 adjacent gradients share the scale max |g| / 127. Each rank sums one n-th of the
/// gradients in fp32 and sends the result as integers, so that no sum overflows.
/// Numerics: the error of a mean is at most max |g| / 127 of its group. A non-finite gradient makes its group NaN
/// Cost:     2 (n - 1) / n · (1 + 1/64) N bytes, N rounded up to a multiple of 256 n; error feedback: 4 N bytes of
///           memory
/// Ref:      arXiv:2102.02888 for error feedback in both directions
std::shared_ptr<GradientHook> int8_hook(const Int8Options& options = {});

struct PowerSgdOptions {
  int64_t rank = 1;  ///< usually 1 to 4; higher ranks cost more time and bytes
  /// Earlier steps use the exact mean, because early gradients are sensitive to errors.
  int64_t start_step = 1000;
  double min_compression_rate = 2;  ///< tensors with a smaller rate use the exact mean, as do all vectors
  bool error_feedback = true;       ///< add the approximation error to the next step's gradients
  bool warm_start = true;           ///< start from the last step's projection
  double epsilon = 0;               ///< added to the column norms
  uint32_t seed = 0;                ///< for the initial projections; the same on all ranks
  bool batch_same_shapes = false;   ///< compress tensors of one shape in one matmul: faster, but needs a copy of them
};

/// Approximates each gradient, viewed as a matrix [rows, columns], by the product of two thin matrices, [rows, r] and
/// [r, columns].
/// Numerics: matches Python's trajectories over twelve steps (tests/parallel/hooks_test.cpp), with two differences. A
///           projection that became zero or NaN (because of an unused layer or an overflow) is drawn again; in Python,
///           it stays so. Exactly averaged tensors have no error. Ranks get the same result only on processors of the
///           same kind
/// Cost:     2 (n - 1) / n · 4 · (sum of r (rows + columns) over compressed tensors, plus all other elements) bytes;
///           two matmuls per gradient; memory for errors and projections
/// Throws:   c10::ValueError if an option is out of range; mean() throws it if parameter sizes differ from those of a
///           restored state
/// Ref:      arXiv:1905.13727; powerSGD_hook
std::shared_ptr<GradientHook> power_sgd_hook(const PowerSgdOptions& options = {});

struct TopKOptions {
  double ratio = 0.01;         ///< share of a bucket's gradients to send, the largest ones; at least one gradient
  bool error_feedback = true;  ///< add the other gradients to those of the next step
};

/// Sends only the largest gradients of each rank with their positions. The mean is zero where no rank sent a value.
/// Cost:     (n - 1) · 8 · ratio · N bytes, which is less than the exact mean only if ratio < 1 / n; a top-k search;
///           error feedback: 4 N bytes of memory
/// Throws:   c10::ValueError if ratio is outside (0, 1]; mean() throws it if parameter sizes differ from those of a
///           restored state
/// Ref:      arXiv:1712.01887
std::shared_ptr<GradientHook> top_k_hook(const TopKOptions& options = {});

}  // namespace bellows::parallel
