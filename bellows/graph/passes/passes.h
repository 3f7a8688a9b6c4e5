#pragma once

#include "bellows/graph/passes/pass.h"

namespace bellows::graph::detail {

// Each function runs one pass and returns the number of changes. pass.cpp describes the passes.
int64_t say_composites(Program& program, const PassOptions& options);
int64_t drop_dead_code(Program& program, const PassOptions& options);
int64_t renew_values(Program& program, const PassOptions& options);
int64_t merge_common(Program& program, const PassOptions& options);
int64_t fold_constants(Program& program, const PassOptions& options);
int64_t simplify_algebra(Program& program, const PassOptions& options);
int64_t merge_casts(Program& program, const PassOptions& options);
int64_t say_evaluations(Program& program, const PassOptions& options);
int64_t say_instance_norms(Program& program, const PassOptions& options);
int64_t fold_batch_norm(Program& program, const PassOptions& options);
int64_t fuse_attention(Program& program, const PassOptions& options);
int64_t join_linears(Program& program, const PassOptions& options);
int64_t split_buffers(Program& program, const PassOptions& options);
int64_t stack_matmuls(Program& program, const PassOptions& options);
int64_t fuse_loops(Program& program, const PassOptions& options);
int64_t join_updates(Program& program, const PassOptions& options);
int64_t order_for_memory(Program& program, const PassOptions& options);
int64_t reuse_operands(Program& program, const PassOptions& options);

}  // namespace bellows::graph::detail
