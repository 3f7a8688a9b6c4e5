#pragma once

#include <span>

#include "bellows/kernels/grad_norm.h"

namespace bellows::kernels::cpu {

/// Σ|x|, Σx² or max|x| over all elements of all tensors; 0 if there are none. Any NaN makes the result NaN.
/// Numerics: converts every element to f64 first, so that sums of narrower types do not overflow. Equals kernels/ref to
///           1e-12; bit-identical for any number of threads (tests/optim/clip_test.cpp).
/// Cost:     reads everything once; one parallel region
/// Threads:  uses libtorch's intra-op threads; safe from all threads
double norm_sum(std::span<const NormTensor> tensors, NormSum what);

/// Multiplies every element by `factor`, which is first rounded to the elements' type. Runs from the last element to
/// the first, because the elements that norm_sum() read last are still in the cache.
/// Numerics: bit-identical to kernels/ref (tests/optim/clip_test.cpp)
/// Cost:     reads and writes everything once; one parallel region
/// Threads:  uses libtorch's intra-op threads
void scale(std::span<const ScaleTensor> tensors, double factor);

}  // namespace bellows::kernels::cpu
