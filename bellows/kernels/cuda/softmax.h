#pragma once

#include "bellows/kernels/softmax.h"

namespace bellows::kernels::cuda {

/// kernels::softmax_statistics and kernels::softmax_gradient for CUDA. These kernels compile, but have not run on a
/// device yet. The tests run their source code on the host, where the CUDA threads run one after another.
/// Params:   args   – all addresses must be on the stream's device
///           stream – a cudaStream_t
/// Numerics: bit-identical in every call. The order of sums differs from the CPU. tests/kernels/cuda_test.cpp compares
///           the results with the reference implementation
/// Cost:     one launch; reads the logits once and writes the gradient once; no synchronization
/// Throws:   c10::Error if this build has no CUDA kernels; std::runtime_error if a launch fails
void softmax_statistics(const SoftmaxStatistics& args, void* stream);
void softmax_gradient(const SoftmaxGradient& args, void* stream);

}  // namespace bellows::kernels::cuda
