#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::graph {

/// Runs independent chains of small instructions concurrently, one chain per thread. Towers, gates, and the two
/// directions of a recurrent network are such chains. The pass marks instructions for ProgramRunner
/// (Instruction::stretch), but does not move them. It must be the last pass, after the passes that replace groups with
/// kernels. It reports one change per branch.
///
/// A stretch consists of consecutive instructions, which are divided into branches that do not depend on each other. A
/// stretch may contain kernels that can run on one thread (Kernel::may_run_beside), and pure libtorch operators on
/// fp32, fp64 and integers. Each instruction must be so small that a second thread would not speed it up. A stretch is
/// created only if the estimated gain is several times the cost of starting threads.
/// Numerics: within rtol 1e-6, because operators then run on one thread and may add in a different order
/// Cost:     one parallel region per stretch, about 5 µs; all branches need their memory at the same time
Pass branches_pass();

}  // namespace bellows::graph
