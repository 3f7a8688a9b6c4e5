#pragma once

#include "bellows/kernels/dropout_norm.h"
#include "bellows/kernels/norm.h"

namespace bellows::kernels::cuda {

/// kernels::norm_forward and its like for a GPU. Compiled, but not yet run on a device: the tests run their source on the
/// host, thread by thread.
/// Params:   args – addresses on the device of the stream
///           workspace – norm_workspace() values of the accumulation type, not shared with what runs at the same time
///           stream – a cudaStream_t
/// Numerics: the same bits on every call; the mean is corrected by the mean of what deviates from it, so that a large one
///           costs no digits; the dropout mask is ref::dropout_keeps(). As ref:: in tests/kernels/cuda_test.cpp.
/// Cost:     one launch forward; backward one for dx, and two for the gradients of weight and bias, which read x and dy
///           again. A row is read once, and again from the caches. No synchronization
/// Throws:   c10::Error – not in this build; std::runtime_error – a launch failed
void norm_forward(const NormForward& args, void* stream);
void norm_backward(const NormBackward& args, void* workspace, void* stream);
void dropout_norm_forward(const DropoutNormForward& args, void* stream);
void dropout_norm_backward(const DropoutNormBackward& args, void* workspace, void* stream);

/// Values of `workspace`: at most a sixteenth of x's, or two rows.
int64_t norm_workspace(int64_t rows, int64_t columns);

}  // namespace bellows::kernels::cuda
