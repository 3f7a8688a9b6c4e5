#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::compile_detail {

/// Puts a kernel in the place of gradients of embeddings (aten::embedding_dense_backward of float32, with ids of int64): its result lies
/// in memory that the program has already, where the operator takes fresh memory for a whole table in each call.
/// Numerics: libtorch's bits: a row's gradients are added in the order of the ids
/// Cost:     the table is written once, and each thread looks at all ids
graph::Pass embedding_pass();

}  // namespace bellows::compile_detail
