#pragma once

#include <optional>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Which arguments of an instruction are the parts of a linear, input · weightᵀ + bias.
struct Linear {
  int input = 0, weight = 1, bias = -1;  ///< -1: it has none; an undefined tensor may stand there, too
  bool transposed = false;               ///< the weight has a column for each result, not a row
};

/// Of a pure call of linear, mm or addmm.
std::optional<Linear> linear_of(const Instruction& one);

}  // namespace bellows::graph
