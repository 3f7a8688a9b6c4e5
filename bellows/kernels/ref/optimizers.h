#pragma once

#include <span>

#include "bellows/kernels/optimizer_step.h"

/// Reference implementation of the optimizer kernels: the same rules in plain C++, applied to one element at a time.
namespace bellows::kernels::ref {

/// Runs one step for each tensor.
void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types);

}  // namespace bellows::kernels::ref
