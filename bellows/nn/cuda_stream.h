#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace bellows::nn {

/// Calls action(stream) on the tensor's CUDA device. `stream` is the current stream of this device, in the form that
/// kernels/cuda expects.
template <class Action>
void on_current_stream(const at::Tensor& tensor, Action action) {
  const c10::DeviceGuard guard(tensor.device());
  const c10::impl::VirtualGuardImpl backend(tensor.device().type());
  action(backend.getStream(tensor.device()).native_handle());
}

}  // namespace bellows::nn
