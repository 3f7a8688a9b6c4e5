#pragma once

#include <functional>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// An estimate of how much of a program can run concurrently. This is only an analysis. branches_pass() (branches.h)
/// decides which instructions run concurrently.
struct Parallelism {
  int levels = 0;      ///< length of the longest chain of dependent instructions
  int widest = 0;      ///< largest number of instructions in one level
  double total = 0;    ///< cost of all instructions
  double longest = 0;  ///< cost of the most expensive chain: a lower bound on the run time for any number of threads

  /// Returns the maximum speedup.
  double gain() const { return longest > 0 ? total / longest : 1; }
};

/// Estimates the parallelism of a program.
/// Params: cost – cost of an instruction, in any unit. By default, the number of bytes that it reads and writes
Parallelism parallelism(const Program& program, const std::function<double(const Instruction&)>& cost = {});

}  // namespace bellows::graph
