#pragma once

#include <string>

#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// The work of a program, as far as it differs between eager code and a compiled program.
struct ProgramWork {
  size_t instructions = 0;
  double traffic_us = 0;  ///< expected time of the bytes that instructions move, also within libtorch's convolutions

  static ProgramWork of(const graph::Program& program);
};

/// Returns the expected time that a compiled program saves in each call, in microseconds. It is negative if eager code
/// is faster. The estimate uses constants instead of timings, so that it is the same on each machine and in each run.
/// Following an operator takes a little longer than the part of its eager call that following replaces. The remaining
/// cost is one dispatch per instruction and a fixed cost per call. The gain is the memory traffic that fusion avoids.
/// Params: recorded – the work of the recorded operators
///         compiled – the work after all passes, before kernels are generated
double expected_gain_us(const ProgramWork& recorded, const ProgramWork& compiled);

}  // namespace bellows::compile_detail
