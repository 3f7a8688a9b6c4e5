#pragma once

namespace bellows::kernels::cuda {

/// Whether this build contains the CUDA kernels (-DBELLOWS_CUDA=ON). Without them, each kernel throws.
bool is_available();

}  // namespace bellows::kernels::cuda
