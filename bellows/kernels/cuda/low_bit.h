#pragma once

#include <span>

#include "bellows/kernels/cuda/optimizers.h"

namespace bellows::kernels::cuda {

/// Runs one step for each tensor with low-bit state, like kernels::cpu::step_low_bit. step() in optimizers.h calls
/// these functions if the state is low-bit. These kernels compile, but have not run on a device yet. The tests run
/// their source code on the host, where the CUDA threads run one after another.
/// Numerics: codes are equal to those of kernels/ref (tests/kernels/cuda_test.cpp), except for individual values that
///           are within rounding error of the midpoint between two codes
/// Cost:     one launch per 16 tensors; Adam with int8 state reads and writes 16 bytes per parameter; no
///           synchronization
/// Throws:   c10::Error if this build has no CUDA kernels; std::runtime_error if a launch fails
void step_low_bit(std::span<const StepTensor<SgdRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream);
void step_low_bit(std::span<const StepTensor<AdamRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream);
void step_low_bit(std::span<const StepTensor<LionRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream);

}  // namespace bellows::kernels::cuda
