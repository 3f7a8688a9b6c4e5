#pragma once

#include <optional>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// The arguments of an instruction that are the parts of a linear: input · weightᵀ + bias.
struct Linear {
  int input = 0, weight = 1, bias = -1;  ///< -1: no bias; the argument may also be an undefined tensor
  bool transposed = false;               ///< the weight has a column per output, not a row
};

/// Returns: the parts, if the instruction is a pure call of linear, mm or addmm
std::optional<Linear> linear_of(const Instruction& one);

}  // namespace bellows::graph
