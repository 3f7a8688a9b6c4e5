#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "bellows/quant/layer.h"

namespace bellows::quant {

/// The result of quantization for one layer.
struct LayerReport {
  std::string name{};
  LayerKind kind = LayerKind::linear;
  std::string kept{};                         ///< why the layer stays in floating point; empty if it was quantized
  int64_t bytes_before = 0, bytes_after = 0;  ///< of the weight and its scales
  double weight_sqnr = std::numeric_limits<double>::infinity();  ///< in decibels
  /// Of the layer's result, in decibels, on the first calibration batch, if only this layer is quantized.
  double result_sqnr = std::numeric_limits<double>::infinity();
};

/// Attention whose query, key and value are results of linears (Options::quantize_attention).
struct AttentionReport {
  std::string query{}, key{}, value{};  ///< names of the linears
  std::string kept{};                   ///< why it stays in floating point; empty if its matmuls multiply integers
  /// Of the result, in decibels, on the first calibration batch, if only this attention is quantized.
  double result_sqnr = std::numeric_limits<double>::infinity();
  /// Returns the text that the names of the linears begin with, such as "layer.0.attention", or the name of the query.
  std::string name() const;
};

struct Report {
  std::vector<LayerReport> layers{};
  std::vector<AttentionReport> attentions{};  ///< empty if `quantize_attention` is off
  int64_t bytes_before = 0, bytes_after = 0;  ///< of all parameters and buffers

  int64_t quantized() const;
  /// Returns a table with one line per layer, and the total size.
  std::string to_text() const;
};

}  // namespace bellows::quant
