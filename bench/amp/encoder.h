#pragma once

#include "bellows/core/model.h"

namespace bellows::bench {

struct EncoderOptions {
  int64_t layers = 12, hidden = 512, heads = 8, feed_forward = 2048;
};

/// A transformer encoder with the results and parameter names of Python's nn.TransformerEncoder (post-norm, ReLU, no dropout). It is
/// written as a libtorch user would write it, with at::linear and fused attention.
/// Shapes: x [B, T, hidden] → [B, T, hidden]
Model encoder(const EncoderOptions& options);

/// Like above, with libtorch's torch::nn::TransformerEncoder.
Model libtorch_encoder(const EncoderOptions& options);

}  // namespace bellows::bench
