#pragma once

#include <span>

#include "bellows/kernels/grad_norm.h"

namespace bellows::kernels::cpu {

/// Σ|x|, Σx² or max|x| over all elements of all tensors; 0 for none. NaN anywhere gives NaN.
/// Numerics: every element is widened to f64 before anything else, so that neither sum overflows for narrower types;
///           equal to kernels/ref to 1e-12, and the same bits for any number of threads (tests/optim/clip_test.cpp)
/// Cost:     reads everything once; one parallel region
/// Threads:  uses libtorch's intra-op threads; safe from all threads
double norm_sum(std::span<const NormTensor> tensors, NormSum what);

/// Multiplies every element by `factor`, rounded to the elements' type first. Goes from the last element to the first:
/// what norm_sum() read last is still in the cache.
/// Numerics: the bits of kernels/ref (tests/optim/clip_test.cpp)
/// Cost:     reads and writes everything once; one parallel region
/// Threads:  uses libtorch's intra-op threads
void scale(std::span<const ScaleTensor> tensors, double factor);

}  // namespace bellows::kernels::cpu
