#pragma once

#include "bellows/models/gpt.h"

namespace bellows::bench {

// A GPT of 8 million parameters, and its batch.
constexpr int64_t gpt_layers = 8, gpt_width = 256, gpt_heads = 8, gpt_vocabulary = 8000;
constexpr int64_t gpt_sequences = 16, gpt_length = 128;

/// Without dropout.
models::GptOptions gpt_sizes();

/// Micro-batches of pipelines with this many ranks.
inline int64_t pipeline_micro_batches(int ranks) {
  return ranks < 8 ? 2 * ranks : 16;
}

/// Serves as one rank of the strategies alone (gradients are not exchanged), ddp, zero1, zero2, zero3, tensor and
/// pipeline.
int serve_simulated_rank();

}  // namespace bellows::bench
