#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// Loads and stores with this or a higher index access scratch memory. Their `offset` is in bytes.
inline constexpr int scratch_index = 1 << 20;

/// A part of an expression that runs as one nest of loops. All its reductions run over the same loops, and its places
/// are independent of each other along the other loops.
struct Phase {
  graph::Expression nest{};  ///< loops without reduction come first
  size_t outer = 0;          ///< number of these loops
};

struct Schedule {
  std::vector<Phase> phases{};  ///< each reads results of earlier phases from scratch memory
  size_t scratch_bytes = 0;
};

/// Divides an expression into phases: reductions along rows and along columns cannot share one. Loops are sorted by the
/// order in memory, and adjacent loops are merged.
/// Returns: nothing if an operand would be written before all of its reads
std::optional<Schedule> schedule(const graph::Expression& expression);

}  // namespace bellows::compile_detail
