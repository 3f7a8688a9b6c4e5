#pragma once

#include <span>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels::cpu {

/// One step of each tensor with low-bit state: block after block is decoded, stepped and coded anew while it
/// stays in the first-level cache. step() of optimizers.h comes here by itself.
/// Numerics: kernels/ref's, but for single codes that lie within rounding of the middle between two
///           (tests/kernels/low_bit_test.cpp). Adam's quotients are within a few units in the last place where vectors hold 16
///           floats: there the last bits of weights depend on the make of the processor
/// Cost:     int8, Adam: 16 bytes a parameter read and written, where fp32 state takes 28
/// Threads:  uses libtorch's intra-op threads; safe from all threads
void step_low_bit(std::span<const StepTensor<SgdRule>> tensors, StepTypes types);
void step_low_bit(std::span<const StepTensor<AdamRule>> tensors, StepTypes types);
void step_low_bit(std::span<const StepTensor<LionRule>> tensors, StepTypes types);

}  // namespace bellows::kernels::cpu
