#pragma once

#include <span>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels::cpu {

/// Runs one step for each tensor with low-bit state. Each block of elements with a common scale is decoded, updated and
/// encoded while it is in the L1 cache. step() in optimizers.h calls these functions if the state is low-bit.
/// Numerics: codes are equal to those of kernels/ref, except for individual values that are within rounding error of
///           the midpoint between two codes (tests/kernels/low_bit_test.cpp). With vectors of 16 floats, Adam's
///           quotients are exact within a few units in the last place. The last bits of weights then depend on the
///           processor model
/// Cost:     Adam with int8 state reads and writes 16 bytes per parameter, compared with 28 bytes for fp32 state
/// Threads:  thread-safe; uses libtorch's intra-op threads
void step_low_bit(std::span<const StepTensor<SgdRule>> tensors, StepTypes types);
void step_low_bit(std::span<const StepTensor<AdamRule>> tensors, StepTypes types);
void step_low_bit(std::span<const StepTensor<LionRule>> tensors, StepTypes types);

}  // namespace bellows::kernels::cpu
