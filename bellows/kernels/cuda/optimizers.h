#pragma once

#include <span>

#include "bellows/kernels/cuda/available.h"
#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels::cuda {

/// Scalars on the device. They are used without a host synchronization. Each pointer may be null.
struct DeviceScalars {
  const float* lr = nullptr;          ///< replaces the rule's lr
  const float* grad_scale = nullptr;  ///< divisor of the gradients
  const float* found_inf = nullptr;   ///< if it is greater than 0, the step changes nothing
};

/// Runs one step for each tensor, like kernels::cpu::step. These kernels compile, but have not run on a device yet.
/// Params: tensors – all addresses must be on the current stream's device
///         stream  – a cudaStream_t
/// Cost:   one launch per 16 tensors; no synchronization
/// Throws: c10::Error if this build has no CUDA kernels; std::runtime_error if a launch fails
void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream);
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream);
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types, const DeviceScalars& scalars,
          void* stream);
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types, const DeviceScalars& scalars,
          void* stream);
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream);

}  // namespace bellows::kernels::cuda
