#pragma once

#include <cstdint>
#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

struct EncoderDecoderOptions {
  int64_t in_features = 1;   ///< values per step
  int64_t out_features = 1;  ///< values per step of the forecast
  int64_t horizon = 1;       ///< number of steps of the forecast
  int64_t num_classes = 0;   ///< above 0: logits of classes for the whole series instead of a forecast
  int64_t start_steps = 1;   ///< number of last known steps that precede the forecast in the decoder
  int64_t d_model = 128;
  int64_t nhead = 8;
  int64_t num_encoder_layers = 3;
  int64_t num_decoder_layers = 3;
  int64_t dim_feedforward = 512;
  std::string activation = "relu";  ///< "relu", "gelu" or "gelu_new"
  double dropout = 0.1;
  bool fused = false;  ///< layer norms of the component nn, which fuse dropout and residual
};

/// A transformer with encoder and decoder for time series: forecasts, or classifies whole series. The encoder reads all
/// known steps. The decoder reads the last `start_steps` of them and zeros for the future steps, in a single pass like
/// Informer, with a causal mask.
///
/// Pad series of unequal length at the end with steps in which all values are NaN. Padding is masked, and each decoder
/// starts at the end of its own series. Steps are projected to d_model, with sine and cosine positions. Layers, norms
/// and names are those of torch.nn.Transformer (`transformer.encoder.layers.0.self_attn.in_proj_weight`).
/// Shapes:   x [N, T, in_features] with T ≥ start_steps → [N, horizon, out_features], or logits [N, num_classes]
/// Numerics: results and gradients match torch.nn.Transformer (tests/models/networks_golden_test.cpp). A padded series
///           gives the same result as without padding, within 1e-6 of the largest result (tests/models/series_test.cpp)
/// Cost:     one check of the input for NaN; on other devices than the CPU, padding is always assumed
/// Throws:   c10::ValueError if a size is below 1, start_steps or num_classes is below 0, nhead does not divide d_model
///           or d_model is odd; in forward, if the shape is wrong or, on a CPU, a series has fewer steps than
///           start_steps
/// Ref:      arXiv:1706.03762; arXiv:2012.07436, section 3.3 (the decoder's input); torch.nn.Transformer
Model encoder_decoder(const EncoderDecoderOptions& options = {});

}  // namespace bellows::models
