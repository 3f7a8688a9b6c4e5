#pragma once

#include <span>

#include "bellows/kernels/cuda/available.h"
#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels::cuda {

/// Scalars on the device, which are used without a host synchronization. Each may be null.
struct DeviceScalars {
  const float* lr = nullptr;          ///< replaces the rule's lr
  const float* grad_scale = nullptr;  ///< gradients are divided by it
  const float* found_inf = nullptr;   ///< if above 0, nothing changes
};

/// Makes one step of each tensor, as kernels::cpu::step. Compiled, but not yet run on a device.
/// Params: tensors – addresses on the current stream's device
///         stream – a cudaStream_t
/// Cost:   one launch for every 16 tensors; no synchronization
/// Throws: c10::Error if this build has no CUDA kernels; std::runtime_error if a launch fails
void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream);
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream);
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types, const DeviceScalars& scalars,
          void* stream);
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types, const DeviceScalars& scalars,
          void* stream);
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream);

}  // namespace bellows::kernels::cuda
