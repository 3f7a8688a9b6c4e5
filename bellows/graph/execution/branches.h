#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::graph {

/// Lets independent chains of small instructions run at the same time, one a thread: towers, gates, directions of a recurrent network. It
/// marks instructions (Instruction::stretch), which a ProgramRunner then runs so; none is moved. To be run last, behind what puts kernels
/// in the place of groups. It fires once a branch.
///
/// A stretch follows each other in the program and falls into branches that need nothing of each other. It is made of kernels that run on
/// one thread as well (Kernel::may_run_beside) and of pure operators of libtorch on fp32, fp64 and integers, each so small that two threads
/// would not speed it up, and only where the estimated gain exceeds what starting threads costs several times over.
/// Numerics: within rtol 1e-6: operators run on one thread then, and may add up in another order
/// Cost:     a stretch: one parallel region, about 5 µs; memory of all its branches at the same time
Pass branches_pass();

}  // namespace bellows::graph
