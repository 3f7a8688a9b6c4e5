#pragma once

#include "bellows/kernels/activation.h"

namespace bellows::kernels::cuda {

/// kernels::activation_forward and kernels::activation_backward for CUDA. These kernels compile, but have not run on a
/// device yet. The tests run their source code on the host, where the CUDA threads run one after another.
/// Params:   args   – all addresses must be on the stream's device
///           stream – a cudaStream_t
/// Numerics: double values are computed in double. All other types are computed in float, with CUDA's erff, tanhf and
///           expf. tests/kernels/cuda_test.cpp compares the results with the reference implementation
/// Cost:     one launch; reads or writes each tensor once; no synchronization
/// Throws:   c10::Error if this build has no CUDA kernels; std::runtime_error if a launch fails
void activation_forward(const ActivationForward& args, void* stream);
void activation_backward(const ActivationBackward& args, void* stream);

}  // namespace bellows::kernels::cuda
