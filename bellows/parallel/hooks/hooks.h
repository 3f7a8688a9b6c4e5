#pragma once

#include <cstdint>
#include <memory>

#include "bellows/parallel/hooks/gradient_hook.h"

/// Ways to the mean of n ranks' gradients. "Bytes" are what each rank sends, and receives as much, for a bucket of N
/// gradients in fp32 (tests/parallel/hooks_test.cpp counts them).
///
/// For all of them: every rank ends with the same bits. A gradient that is infinite or NaN on one rank leaves
/// non-finite numbers on every rank, so that amp::GradScaler leaves out the step everywhere; errors that are fed back
/// stay then as they were before. In a group of one nothing is computed nor copied. A hook belongs to one model. Its state
/// is each rank's own ("error.0": of the parameter that came first in the first step), for a run that goes on with as many
/// ranks and the same bucket size.
namespace bellows::parallel {

/// The mean itself: each rank divides by n, then they are added up.
/// Numerics: as Python's DistributedDataParallel
/// Cost:     2 (n - 1) / n · 4 N bytes
/// Ref:      allreduce_hook
std::shared_ptr<GradientHook> all_reduce_hook();

/// As bf16, or fp16, over the wire. Gradients of 16 bits travel as they are.
/// Numerics: divided by n before they are cast, so that the sum of fp16 does not overflow; each of the n - 1 additions
///           rounds: relative error up to n · 2⁻⁹ (bf16), n · 2⁻¹² (fp16, of numbers above 6e-5)
/// Cost:     2 (n - 1) / n · 2 N bytes
/// Ref:      bf16_compress_hook, fp16_compress_hook
std::shared_ptr<GradientHook> bf16_hook();
std::shared_ptr<GradientHook> fp16_hook();

struct Int8Options {
  bool error_feedback = true;  ///< what rounding took away is added to the next step's gradients
};

/// As 8-bit integers over the wire: 256 neighbours share the scale max |g| / 127. Each rank adds up one n-th in fp32 and
/// sends it on as integers, so that no sum overflows.
/// Numerics: error of one mean up to max |g| / 127 of its 256. A non-finite gradient makes its 256 NaN
/// Cost:     2 (n - 1) / n · (1 + 1/64) N bytes, N rounded up to a multiple of 256 n; feedback: 4 N bytes of memory
/// Ref:      arXiv:2102.02888 for errors on both ways
std::shared_ptr<GradientHook> int8_hook(const Int8Options& options = {});

struct PowerSgdOptions {
  int64_t rank = 1;                 ///< 1 to 4 as a rule; more costs more time and bytes
  int64_t start_step = 1000;        ///< the steps before it take the mean itself: early gradients bear no loss
  double min_compression_rate = 2;  ///< tensors that shrink by less take the mean itself; all vectors do
  bool error_feedback = true;       ///< what the rank left out is added to the next step's gradients
  bool warm_start = true;           ///< begin with the last step's projection
  double epsilon = 0;               ///< added to the norms of columns
  uint32_t seed = 0;                ///< of the first projections, the same on all ranks
  bool batch_same_shapes = false;   ///< tensors of one shape in one product: faster, a copy of them
};

/// Each gradient, as a matrix [rows, columns], becomes the product of two thin ones, [rows, r] and [r, columns].
/// Numerics: as Python's, trajectories of twelve steps (tests/parallel/hooks_test.cpp), with two differences: a projection that
///           became zero or NaN, by an unused layer or a step that overflowed, is drawn anew (Python's stays so for ever), and
///           what travels exactly has no error. Ranks compute alike only on processors of one kind
/// Cost:     2 (n - 1) / n · 4 · (sum of r (rows + columns) over what is compressed, and all the rest) bytes; two matrix
///           products a gradient; memory of errors and projections
/// Throws:   c10::ValueError – an option out of its range; mean(): parameters of other sizes than in a restored state
/// Ref:      arXiv:1905.13727; powerSGD_hook
std::shared_ptr<GradientHook> power_sgd_hook(const PowerSgdOptions& options = {});

struct TopKOptions {
  double ratio = 0.01;         ///< of a bucket's gradients, the largest; at least one
  bool error_feedback = true;  ///< the others are added to the next step's gradients
};

/// Only the largest gradients of each rank travel, with their places; where none came, the mean is zero.
/// Cost:     (n - 1) · 8 · ratio · N bytes: fewer than the mean itself only while ratio < 1 / n; a search for the largest;
///           feedback: 4 N bytes of memory
/// Throws:   c10::ValueError – a ratio outside (0, 1]; mean(): parameters of other sizes than in a restored state
/// Ref:      arXiv:1712.01887
std::shared_ptr<GradientHook> top_k_hook(const TopKOptions& options = {});

}  // namespace bellows::parallel
