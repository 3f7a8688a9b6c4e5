#pragma once

#include "bellows/kernels/activation.h"

namespace bellows::kernels::cuda {

/// kernels::activation_forward and kernels::activation_backward for CUDA. Compiled, but not yet run on a device; the
/// tests run their source on the host, one thread after another.
/// Params:   args – addresses on the stream's device
///           stream – a cudaStream_t
/// Numerics: in double for double, otherwise in float with CUDA's erff, tanhf and expf. Compared with ref:: in
///           tests/kernels/cuda_test.cpp.
/// Cost:     one launch; reads or writes each tensor once; no synchronization
/// Throws:   c10::Error if this build has no CUDA kernels; std::runtime_error if a launch fails
void activation_forward(const ActivationForward& args, void* stream);
void activation_backward(const ActivationBackward& args, void* stream);

}  // namespace bellows::kernels::cuda
