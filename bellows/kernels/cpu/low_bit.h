#pragma once

#include <span>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels::cpu {

/// Makes one step of each tensor with low-bit state. Each block is decoded, updated and encoded while it is in the L1
/// cache. step() in optimizers.h calls this function if the state is low-bit.
/// Numerics: equals kernels/ref, except for single codes whose value lies within rounding of the midpoint between two
///           codes (tests/kernels/low_bit_test.cpp). With vectors of 16 floats, Adam's quotients are exact only to a
///           few units in the last place, and the last bits of weights depend on the processor model.
/// Cost:     Adam with int8 state reads and writes 16 bytes per parameter; with fp32 state it is 28 bytes
/// Threads:  uses libtorch's intra-op threads; safe from all threads
void step_low_bit(std::span<const StepTensor<SgdRule>> tensors, StepTypes types);
void step_low_bit(std::span<const StepTensor<AdamRule>> tensors, StepTypes types);
void step_low_bit(std::span<const StepTensor<LionRule>> tensors, StepTypes types);

}  // namespace bellows::kernels::cpu
