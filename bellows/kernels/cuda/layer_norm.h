#pragma once

#include "bellows/kernels/dropout_norm.h"
#include "bellows/kernels/layer_norm.h"

namespace bellows::kernels::cuda {

/// kernels::norm_forward and the related functions for CUDA. These kernels compile, but have not run on a device yet.
/// The tests run their source code on the host, where the CUDA threads run one after another.
/// Params:   args      – all addresses must be on the stream's device
///           workspace – norm_workspace() values of the accumulation type. Concurrent calls must not share it
///           stream    – a cudaStream_t
/// Numerics: bit-identical in every call. The mean is corrected by the mean of the deviations from it, so that a large
///           mean does not reduce precision. The dropout mask is ref::dropout_keeps(). tests/kernels/cuda_test.cpp
///           compares the results with the reference implementation
/// Cost:     forward needs one launch. Backward needs one launch for dx, and two for the gradients of weight and bias,
///           which read x and dy again. Repeated reads of a row hit the caches. There is no synchronization
/// Throws:   c10::Error if this build has no CUDA kernels; std::runtime_error if a launch fails
void norm_forward(const NormForward& args, void* stream);
void norm_backward(const NormBackward& args, void* workspace, void* stream);
void dropout_norm_forward(const DropoutNormForward& args, void* stream);
void dropout_norm_backward(const DropoutNormBackward& args, void* workspace, void* stream);

/// Returns the number of values of `workspace`: two rows of `columns` values for each chunk of rows of x. There is one
/// chunk for every 32 rows, but at most 128 chunks.
int64_t norm_workspace(int64_t rows, int64_t columns);

}  // namespace bellows::kernels::cuda
