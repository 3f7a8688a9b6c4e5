#pragma once

#include <cstdint>

namespace bellows::bench {

/// The sizes of the measured attention. bench/peers/context.py uses the same.
struct ContextSizes {
  int64_t heads = 4, tokens = 4096, width = 64;
};

/// Our side of the comparison, as a separate program. Rank 0 reads the commands of bench/peers/context.py from its
/// standard input and forwards them to the other ranks, which it starts.
/// Returns: the program's exit code
int serve_context_rank(const ContextSizes& sizes);

}  // namespace bellows::bench
