#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::compile_detail {

/// Replaces the backward operator of embeddings (aten::embedding_dense_backward of float32 with int64 ids) with a
/// kernel. The kernel writes its result to memory that the program reuses. In contrast, the operator allocates memory
/// for a complete table in each call.
/// Numerics: bit-identical to libtorch; the gradients of a row are added in the order of the ids
/// Cost:     writes the table once; each thread reads all ids
graph::Pass embedding_pass();

}  // namespace bellows::compile_detail
