#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// Loads and stores of an index from here on are of scratch memory: `offset` counts bytes there.
inline constexpr int scratch_index = 1 << 20;

/// A part of an expression that runs at once: all its reductions run over the same loops, and all its places are independent
/// of each other along the other ones.
struct Phase {
  graph::Expression nest{};  ///< loops that nothing is reduced along stand first
  size_t outer = 0;          ///< how many these are
};

struct Schedule {
  std::vector<Phase> phases{};  ///< each needs what those before it leave in scratch memory
  size_t scratch_bytes = 0;
};

/// Takes an expression apart into phases: what is reduced along rows and what is reduced along columns can not be one. Loops
/// are put in the order of the memory, and those that run on into each other are made one.
/// Returns: nothing where an operand would be written before all its reads
std::optional<Schedule> schedule(const graph::Expression& expression);

}  // namespace bellows::compile_detail
