#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bellows/graph/program/program.h"
#include "bellows/graph/recording/recording.h"

namespace bellows::graph::detail {

/// A program that is equivalent to a part of a recording, and the buffers of the call that are its inputs and outputs.
struct BuiltProgram {
  Program program{};
  std::vector<BufferId> inputs{}, outputs{};
};

/// Copies recorded instructions into a program, and replaces their buffers with values: each write creates a new value.
/// Params: operators – in the order of their calls
///         alive     – whether a buffer that these operators created is still referenced
BuiltProgram build_program(std::span<const RecordedOperator* const> operators,
                           const std::function<bool(BufferId)>& alive);

}  // namespace bellows::graph::detail
