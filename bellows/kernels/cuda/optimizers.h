#pragma once

#include <span>

#include "bellows/kernels/cuda/available.h"
#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels::cuda {

/// Scalars that live on the device, so that the host need not wait for them. Each null unless given.
struct DeviceScalars {
  const float* lr = nullptr;          ///< replaces the rule's
  const float* grad_scale = nullptr;  ///< gradients are divided by it
  const float* found_inf = nullptr;   ///< above 0: nothing changes
};

/// One step of each tensor, as kernels::cpu::step. Compiled, but not yet run on a device.
/// Params:   tensors – addresses on the device of the current stream
///           stream – a cudaStream_t
/// Cost:     one launch for every 16 tensors; no synchronization
/// Throws:   c10::Error – not in this build; std::runtime_error – a launch failed
void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream);
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream);
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types, const DeviceScalars& scalars,
          void* stream);
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types, const DeviceScalars& scalars,
          void* stream);
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream);

}  // namespace bellows::kernels::cuda
