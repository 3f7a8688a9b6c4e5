#pragma once

namespace bellows::kernels::cuda {

/// Whether this build holds the kernels of this folder (-DBELLOWS_CUDA=ON). Without them, each throws.
bool is_available();

}  // namespace bellows::kernels::cuda
