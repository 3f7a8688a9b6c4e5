#pragma once

#include "bellows/kernels/dropout_norm.h"
#include "bellows/kernels/layer_norm.h"

namespace bellows::kernels::cuda {

/// kernels::norm_forward and the related functions for CUDA. Compiled, but not yet run on a device; the tests run their
/// source on the host, one thread after another.
/// Params:   args – addresses on the stream's device
///           workspace – norm_workspace() values of the accumulation type, not shared with calls that run at the same
///           time
///           stream – a cudaStream_t
/// Numerics: bit-identical on every call. The mean is corrected by the mean of the deviations from it, so that a large
///           mean loses no precision. The dropout mask is ref::dropout_keeps(). Compared with ref:: in
///           tests/kernels/cuda_test.cpp.
/// Cost:     forward takes one launch. Backward takes one for dx and two for the gradients of weight and bias, which
///           read x and dy again. Repeated reads of a row come from the caches. No synchronization.
/// Throws:   c10::Error if this build has no CUDA kernels; std::runtime_error if a launch fails
void norm_forward(const NormForward& args, void* stream);
void norm_backward(const NormBackward& args, void* workspace, void* stream);
void dropout_norm_forward(const DropoutNormForward& args, void* stream);
void dropout_norm_backward(const DropoutNormBackward& args, void* workspace, void* stream);

/// Number of values of `workspace`: at most a sixteenth of x's, or two rows.
int64_t norm_workspace(int64_t rows, int64_t columns);

}  // namespace bellows::kernels::cuda
