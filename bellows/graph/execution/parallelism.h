#pragma once

#include <functional>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// How much of a program may run at the same time: an analysis only (branches.h makes it so, where it pays).
struct Parallelism {
  int levels = 0;      ///< the longest chain of instructions that need each other
  int widest = 0;      ///< the most instructions of one level
  double total = 0;    ///< cost of all instructions
  double longest = 0;  ///< cost of the dearest chain: no number of threads is faster

  /// How much faster it could be at best.
  double gain() const { return longest > 0 ? total / longest : 1; }
};

/// Params: cost – of an instruction, in any unit; without it, the bytes that it reads and writes
Parallelism parallelism(const Program& program, const std::function<double(const Instruction&)>& cost = {});

}  // namespace bellows::graph
