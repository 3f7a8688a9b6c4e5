#pragma once

#include <span>

#include "bellows/kernels/optimizer_step.h"

/// What the fast kernels have to equal: the same rules in plain C++, element after element.
namespace bellows::kernels::ref {

/// One step of each tensor.
void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types);

}  // namespace bellows::kernels::ref
