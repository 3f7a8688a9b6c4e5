#pragma once

#include <span>

#include "bellows/kernels/cuda/optimizers.h"

namespace bellows::kernels::cuda {

/// One step of each tensor with low-bit state, as kernels::cpu::step_low_bit. step() of optimizers.h comes here by itself.
/// Compiled, but not yet run on a device: the tests run its source on the host, thread by thread.
/// Numerics: kernels/ref's (tests/kernels/cuda_test.cpp), but for single codes that lie within rounding of the middle between
///           two
/// Cost:     one launch for every 16 tensors; int8, Adam: 16 bytes a parameter read and written; no synchronization
/// Throws:   c10::Error – not in this build; std::runtime_error – a launch failed
void step_low_bit(std::span<const StepTensor<SgdRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream);
void step_low_bit(std::span<const StepTensor<AdamRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream);
void step_low_bit(std::span<const StepTensor<LionRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream);

}  // namespace bellows::kernels::cuda
