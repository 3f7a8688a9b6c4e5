#pragma once

#include <cstdint>
#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

struct EncoderDecoderOptions {
  int64_t in_features = 1;   ///< values a step
  int64_t out_features = 1;  ///< values a step of the forecast
  int64_t horizon = 1;       ///< steps of the forecast
  int64_t num_classes = 0;   ///< above 0: in place of a forecast, scores of classes for the whole series
  int64_t start_steps = 1;   ///< of the last known steps, that stand before the forecast's in the decoder
  int64_t d_model = 128;
  int64_t nhead = 8;
  int64_t num_encoder_layers = 3;
  int64_t num_decoder_layers = 3;
  int64_t dim_feedforward = 512;
  std::string activation = "relu";  ///< "relu", "gelu" or "gelu_new"
  double dropout = 0.1;
  bool fused = false;  ///< layer norms of the component nn, with dropout and residual in one pass
};

/// A transformer with encoder and decoder for time series: forecasts, or classes of whole series. The encoder reads all
/// known steps; the decoder reads the last `start_steps` of them and zeros for the steps to come, all in one pass as
/// Informer does, and no step sees a later one (a causal mask). Series of unequal length are filled up at their end with
/// steps that are NaN in all their values: nobody looks at these, and each decoder starts at its own series' end. Steps
/// are projected to d_model and get sines and cosines as positions. Layers, norms and names are torch.nn.Transformer's
/// (`transformer.encoder.layers.0.self_attn.in_proj_weight`).
/// Shapes:   x [N, T, in_features] with T ≥ start_steps → [N, horizon, out_features], or scores [N, num_classes]
/// Numerics: results and gradients equal torch.nn.Transformer's (tests/models/networks_golden_test.cpp). A series that was filled
///           up gives what it gives alone, within 1e-6 of the largest result (tests/models/series_test.cpp)
/// Cost:     one look at the input for NaN; where the series are on another device than the CPU, padding is always reckoned with
/// Throws:   c10::ValueError – options below 1, nhead that does not divide d_model, an odd d_model; in forward: another shape; on
///           a CPU: a series of fewer steps than start_steps
/// Ref:      arXiv:1706.03762; arXiv:2012.07436, section 3.3 (the decoder's input); torch.nn.Transformer
Model encoder_decoder(const EncoderDecoderOptions& options = {});

}  // namespace bellows::models
