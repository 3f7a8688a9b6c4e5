#pragma once

#include <span>

#include "bellows/kernels/grad_norm.h"

namespace bellows::kernels::ref {

/// What cpu::norm_sum() has to equal, element after element.
double norm_sum(std::span<const NormTensor> tensors, NormSum what);

/// What cpu::scale() has to equal.
void scale(std::span<const ScaleTensor> tensors, double factor);

}  // namespace bellows::kernels::ref
