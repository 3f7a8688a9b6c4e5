#pragma once

#include "bellows/graph/program/explanation.h"
#include "bellows/graph/recording/buffer_table.h"
#include "bellows/graph/recording/segment.h"

namespace bellows::graph::detail {

/// Runs operators in the order in which they were called, each under the state it was called in. Data moves under the storages that
/// were handed out and are still held; what nobody holds is freed after its last use here.
/// Throws: what an operator throws, with its name added. Then what came before has its values, as if the operators had run
///         when they were called, and what was to come after has none and says why when touched.
void run_in_order(const Segment& segment, BufferTable& buffers, Explanation& counts);

}  // namespace bellows::graph::detail
