#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bellows/graph/program/program.h"
#include "bellows/graph/recording/graph.h"

namespace bellows::graph::detail {

/// A program that does what a piece of a recording does, and which buffers of the call stand behind its inputs and outputs.
struct BuiltProgram {
  Program program{};
  std::vector<BufferId> inputs{}, outputs{};
};

/// Brings operators into functional form: a new value for each write.
/// Params: nodes – deferred ones that are no views, in the order in which they were called
///         alive – whether somebody will look at a buffer that they made
BuiltProgram build_program(std::span<const Node* const> nodes, const std::function<bool(BufferId)>& alive);

}  // namespace bellows::graph::detail
