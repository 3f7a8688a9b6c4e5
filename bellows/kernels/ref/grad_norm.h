#pragma once

#include <span>

#include "bellows/kernels/grad_norm.h"

namespace bellows::kernels::ref {

/// Reference implementation of cpu::norm_sum(). It processes one element at a time.
double norm_sum(std::span<const NormTensor> tensors, NormSum what);

/// Reference implementation of cpu::scale().
void scale(std::span<const ScaleTensor> tensors, double factor);

}  // namespace bellows::kernels::ref
