#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::compile_detail {

/// Replaces small matmuls that share their right-hand matrix, such as those of the time steps of a recurrent network,
/// with kernels (kernels/packed_matmul.h). The matrix is packed once per run of the program. Types: float, double,
/// BFloat16 and Half.
/// Numerics: rtol 1e-5 in fp32, because sums are computed in a different order than in BLAS
graph::Pass shared_matmul_pass();

}  // namespace bellows::compile_detail
