#pragma once

#include <span>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels::cpu {

/// Makes one step of each tensor in one pass over its memory, with the widest vectors that the processor has.
/// Params:   tensors – all tensors of one call have the same types; arrays of different tensors do not overlap
/// Numerics: equals kernels/ref to a few units in the last place, because multiplications and additions are fused here
///           (tests/kernels/optimizers_test.cpp)
/// Cost:     reads gradient, parameter and state once, writes parameter and state once; one parallel region per call
/// Threads:  uses libtorch's intra-op threads; safe from all threads
void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types);

}  // namespace bellows::kernels::cpu
