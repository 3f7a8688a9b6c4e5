#pragma once

#include <span>

#include "bellows/kernels/cuda/optimizers.h"

namespace bellows::kernels::cuda {

/// Makes one step of each tensor with low-bit state, as kernels::cpu::step_low_bit. step() in optimizers.h calls this
/// function if the state is low-bit. Compiled, but not yet run on a device; the tests run its source on the host, one
/// thread after another.
/// Numerics: equals kernels/ref (tests/kernels/cuda_test.cpp), except for single codes whose value lies within rounding
///           of the midpoint between two codes
/// Cost:     one launch for every 16 tensors; Adam with int8 state reads and writes 16 bytes per parameter; no
///           synchronization
/// Throws:   c10::Error if this build has no CUDA kernels; std::runtime_error if a launch fails
void step_low_bit(std::span<const StepTensor<SgdRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream);
void step_low_bit(std::span<const StepTensor<AdamRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream);
void step_low_bit(std::span<const StepTensor<LionRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream);

}  // namespace bellows::kernels::cuda
