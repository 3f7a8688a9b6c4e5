#pragma once

#include "bellows/kernels/softmax.h"

namespace bellows::kernels::cuda {

/// kernels::softmax_statistics and kernels::softmax_gradient for a GPU. Compiled, but not yet run on a device: the tests run
/// their source on the host, thread by thread.
/// Params:   args – addresses on the device of the stream
///           stream – a cudaStream_t
/// Numerics: the same bits on every call; sums in another order than on the CPU. As ref:: in tests/kernels/cuda_test.cpp.
/// Cost:     one launch; the scores are read once, the gradient is written once; no synchronization
/// Throws:   c10::Error – not in this build; std::runtime_error – a launch failed
void softmax_statistics(const SoftmaxStatistics& args, void* stream);
void softmax_gradient(const SoftmaxGradient& args, void* stream);

}  // namespace bellows::kernels::cuda
