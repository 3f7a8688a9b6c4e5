#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::compile_detail {

/// Returns the pass "masks". If a value is computed only from a bool tensor and constants, such as the scaled mask of a
/// dropout, each pointwise operator that reads the value gets a copy of this computation. Fusion then joins the copy
/// with its reader, so that the forward and backward kernels read 1 byte per element, and the wider value is never
/// stored.
graph::Pass masks_pass();

}  // namespace bellows::compile_detail
