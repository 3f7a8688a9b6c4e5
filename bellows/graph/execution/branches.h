#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::graph {

/// Runs independent chains of small instructions at the same time, one per thread, such as towers, gates, or the
/// directions of a recurrent network. The pass marks instructions (Instruction::stretch) for ProgramRunner and moves
/// none. It must be the last pass, after those that replace groups by kernels. It fires once per branch.
///
/// A stretch consists of consecutive instructions, divided into branches that do not depend on each other. Allowed are
/// kernels that can run on one thread (Kernel::may_run_beside), and pure libtorch operators on fp32, fp64 and integers.
/// Each must be so small that two threads would not speed it up. A stretch is made only if the estimated gain is
/// several times the cost of starting threads.
/// Numerics: within rtol 1e-6, because operators then run on one thread and may add in another order
/// Cost:     per stretch: one parallel region, about 5 µs; the memory of all branches at the same time
Pass branches_pass();

}  // namespace bellows::graph
