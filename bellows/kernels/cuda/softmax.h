#pragma once

#include "bellows/kernels/softmax.h"

namespace bellows::kernels::cuda {

/// kernels::softmax_statistics and kernels::softmax_gradient for CUDA. Compiled, but not yet run on a device; the tests
/// run their source on the host, one thread after another.
/// Params:   args – addresses on the stream's device
///           stream – a cudaStream_t
/// Numerics: bit-identical on every call; the order of sums differs from the CPU. Compared with ref:: in
///           tests/kernels/cuda_test.cpp.
/// Cost:     one launch; reads the logits once and writes the gradient once; no synchronization
/// Throws:   c10::Error if this build has no CUDA kernels; std::runtime_error if a launch fails
void softmax_statistics(const SoftmaxStatistics& args, void* stream);
void softmax_gradient(const SoftmaxGradient& args, void* stream);

}  // namespace bellows::kernels::cuda
