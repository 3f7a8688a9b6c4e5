#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// Loads and stores with this or a higher index access scratch memory. Their `offset` is in bytes.
inline constexpr int scratch_index = 1 << 20;

/// A part of an expression that runs as one loop nest. All its reductions run over the same loops. Along all other
/// loops, the iterations are independent of each other.
struct Phase {
  graph::Expression nest{};  ///< loops without reduction come first
  size_t outer = 0;          ///< number of loops without reduction
};

struct Schedule {
  std::vector<Phase> phases{};  ///< each phase may read results of earlier phases from scratch memory
  size_t scratch_bytes = 0;
};

/// Divides an expression into phases. Reductions along rows and reductions along columns are in different phases. Loops
/// are sorted by stride, longest first, and adjacent loops are merged where the memory is contiguous.
/// Returns: nothing if an operand would be written before its last read, or an element would be updated more than once
std::optional<Schedule> schedule(const graph::Expression& expression);

}  // namespace bellows::compile_detail
