#pragma once

#include <cstdint>
#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

struct EncoderDecoderOptions {
  int64_t in_features = 1;   ///< number of values per time step
  int64_t out_features = 1;  ///< number of values per forecast step
  int64_t horizon = 1;       ///< number of forecast steps
  /// If above 0, the model returns class logits for the complete series instead of a forecast.
  int64_t num_classes = 0;
  /// Number of known steps, at the end of the series, that the decoder reads before the forecast steps.
  int64_t start_steps = 1;
  int64_t d_model = 128;
  int64_t nhead = 8;
  int64_t num_encoder_layers = 3;
  int64_t num_decoder_layers = 3;
  int64_t dim_feedforward = 512;
  std::string activation = "relu";  ///< "relu", "gelu" or "gelu_new"
  double dropout = 0.1;
  bool fused = false;  ///< use the layer norms of the component nn, which fuse dropout and the residual addition
};

/// A transformer with encoder and decoder for time series. It forecasts future steps or classifies complete series. The
/// encoder reads all known steps. The decoder reads the last `start_steps` known steps, followed by zeros for the
/// future steps. As in Informer, the decoder predicts all future steps in a single pass. It uses a causal mask.
///
/// If series have different lengths, pad them at the end with steps in which all values are NaN. Padding is masked. For
/// each series, the decoder starts at the end of the series' known steps. Time steps are projected to d_model, and sine
/// and cosine positions are added. Layers, norms and names are those of torch.nn.Transformer
/// (`transformer.encoder.layers.0.self_attn.in_proj_weight`).
/// Shapes:   x [N, T, in_features] with T ≥ start_steps → [N, horizon, out_features], or logits [N, num_classes]
/// Numerics: results and gradients match torch.nn.Transformer (tests/models/networks_golden_test.cpp). A series with
///           padding gives the same result as without padding, within 1e-6 of the largest result
///           (tests/models/series_test.cpp)
/// Cost:     the input is searched for NaN once. On devices other than the CPU, the model always assumes padding
/// Throws:   c10::ValueError if a size is below 1, if start_steps or num_classes is below 0, if nhead does not divide
///           d_model, or if d_model is odd. Forward throws it if the shape is wrong or, on a CPU, if a series has fewer
///           than start_steps steps
/// Ref:      arXiv:1706.03762; arXiv:2012.07436, section 3.3 (the decoder's input); torch.nn.Transformer
Model encoder_decoder(const EncoderDecoderOptions& options = {});

}  // namespace bellows::models
