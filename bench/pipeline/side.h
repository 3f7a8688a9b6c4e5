#pragma once

#include <cstdint>

namespace bellows::bench {

/// The sizes of the measured model: residual blocks with a norm and two linear layers. bench/peers/pipeline.py uses the
/// same.
struct PipelineSizes {
  int64_t blocks = 16, width = 256, tokens = 2048;
  int micro_batches = 8;
  double learning_rate = 0.01;
};

/// Our side of the comparison, as a separate program. Rank 0 reads the commands of bench/peers/pipeline.py from its
/// standard input and forwards them to the other ranks, which it starts.
/// Returns: the program's exit code
int serve_pipeline_rank(const PipelineSizes& sizes);

}  // namespace bellows::bench
