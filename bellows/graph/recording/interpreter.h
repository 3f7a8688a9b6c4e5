#pragma once

#include "bellows/graph/program/explanation.h"
#include "bellows/graph/recording/buffer_table.h"
#include "bellows/graph/recording/segment.h"

namespace bellows::graph::detail {

/// Runs pending operators in the order of their calls, each in the state in which it was called. The data of the
/// results moves into the storages that the pending tensors already have, if these are still referenced. All other
/// buffers are freed after their last use.
/// Throws: exceptions of operators, with the name of the operator. Results of earlier operators then have their values,
///         as in eager code. Later results have no value, and accessing them throws an error with the reason
void run_in_order(const Segment& segment, BufferTable& buffers, Explanation& counts);

}  // namespace bellows::graph::detail
