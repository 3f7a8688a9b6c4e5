#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::compile_detail {

/// Replaces gradients of embeddings by a kernel (aten::embedding_dense_backward of float32 with int64 ids). Its result
/// uses memory of the program, while the operator allocates memory for a whole table in each call.
/// Numerics: bit-identical to libtorch: a row's gradients are added in the order of the ids
/// Cost:     writes the table once; each thread reads all ids
graph::Pass embedding_pass();

}  // namespace bellows::compile_detail
