#pragma once

#include "bellows/core/model.h"

namespace bellows::bench {

struct EncoderOptions {
  int64_t layers = 12, hidden = 512, heads = 8, feed_forward = 2048;
};

/// A transformer encoder as Python's nn.TransformerEncoder computes it (post-norm, ReLU, no dropout), with its names of
/// parameters: written the way a user of libtorch would, over at::linear and fused attention.
/// Shapes: x [B, T, hidden] → [B, T, hidden]
Model encoder(const EncoderOptions& options);

/// The same by libtorch's torch::nn::TransformerEncoder.
Model libtorch_encoder(const EncoderOptions& options);

}  // namespace bellows::bench
