#pragma once

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Returns the floating-point operations of matrix multiplications, convolutions, attention and their gradients. For
/// all other instructions, the result is 0.
double flops_of(const Instruction& instruction);

/// Returns an estimate of an instruction's time in microseconds. The estimate uses constants instead of timings, so that
/// it is the same on each machine and in each run.
double work_of(const Instruction& instruction);

}  // namespace bellows::graph
