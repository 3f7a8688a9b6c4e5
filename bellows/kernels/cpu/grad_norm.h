#pragma once

#include <span>

#include "bellows/kernels/grad_norm.h"

namespace bellows::kernels::cpu {

/// Returns Σ|x|, Σx² or max|x| over all elements of all tensors, or 0 if there are no elements. If an element is NaN,
/// the result is NaN.
/// Numerics: every element is first converted to f64, so that sums of narrower types do not overflow. Equal to
///           kernels/ref within 1e-12 and bit-identical for any number of threads (tests/optim/clip_test.cpp)
/// Cost:     reads each element once; one parallel region
/// Threads:  thread-safe; uses libtorch's intra-op threads
double norm_sum(std::span<const NormTensor> tensors, NormSum what);

/// Multiplies every element by `factor`, which is first rounded to the element type. The function starts with the last
/// element, because the elements that norm_sum() read last are still in the cache.
/// Numerics: bit-identical to kernels/ref (tests/optim/clip_test.cpp)
/// Cost:     reads and writes each element once; one parallel region
/// Threads:  uses libtorch's intra-op threads
void scale(std::span<const ScaleTensor> tensors, double factor);

}  // namespace bellows::kernels::cpu
