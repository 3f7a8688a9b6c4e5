#pragma once

#include <optional>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// The arguments of an instruction that computes a linear: input · weightᵀ + bias.
struct Linear {
  int input = 0, weight = 1, bias = -1;  ///< bias: -1 if there is none; the argument may also be an undefined tensor
  bool transposed = false;               ///< the weight has one column per output instead of one row
};

/// Returns the arguments if the instruction is a pure call of linear, mm or addmm, else nothing.
std::optional<Linear> linear_of(const Instruction& one);

}  // namespace bellows::graph
