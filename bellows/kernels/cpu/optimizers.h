#pragma once

#include <span>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels::cpu {

/// Runs one step for each tensor in one pass over its memory, with the widest vectors that the processor supports.
/// Params:   tensors – all tensors of a call must have the same types. Arrays of different tensors must not overlap
/// Numerics: equal to kernels/ref within a few units in the last place, because these kernels fuse multiplications and
///           additions (tests/kernels/optimizers_test.cpp)
/// Cost:     reads gradient, parameter and state once, and writes parameter and state once; one parallel region per
///           call
/// Threads:  thread-safe; uses libtorch's intra-op threads
void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types);
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types);

}  // namespace bellows::kernels::cpu
