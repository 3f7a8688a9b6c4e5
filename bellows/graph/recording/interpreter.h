#pragma once

#include "bellows/graph/program/explanation.h"
#include "bellows/graph/recording/buffer_table.h"
#include "bellows/graph/recording/segment.h"

namespace bellows::graph::detail {

/// Runs pending operators in the order of their calls, each in the state in which it was called. Their data moves into
/// the storages that were returned, if these are still referenced. Other buffers are freed after their last use.
/// Throws: exceptions of operators, with the operator's name added. Results of earlier operators then have their
///         values, as in eager code. Later results have none; accessing one throws an error with the reason.
void run_in_order(const Segment& segment, BufferTable& buffers, Explanation& counts);

}  // namespace bellows::graph::detail
