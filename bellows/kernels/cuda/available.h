#pragma once

namespace bellows::kernels::cuda {

/// Returns whether this build contains the CUDA kernels (-DBELLOWS_CUDA=ON). If not, each kernel throws an exception.
bool is_available();

}  // namespace bellows::kernels::cuda
