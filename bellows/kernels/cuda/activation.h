#pragma once

#include "bellows/kernels/activation.h"

namespace bellows::kernels::cuda {

/// kernels::activation_forward and kernels::activation_backward for a GPU. Compiled, but not yet run on a device: the tests
/// run their source on the host, thread by thread.
/// Params:   args – addresses on the device of the stream
///           stream – a cudaStream_t
/// Numerics: in float for all but double, by CUDA's erff, tanhf and expf. As ref:: in tests/kernels/cuda_test.cpp.
/// Cost:     one launch; each tensor read or written once; no synchronization
/// Throws:   c10::Error – not in this build; std::runtime_error – a launch failed
void activation_forward(const ActivationForward& args, void* stream);
void activation_backward(const ActivationBackward& args, void* stream);

}  // namespace bellows::kernels::cuda
