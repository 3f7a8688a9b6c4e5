#pragma once

#include <cstdint>

#include "bellows/models/bert.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/gpt.h"

namespace bellows::models {

/// The numbers that make a transformer large. A smaller model of the same architecture calls the same operators in the
/// same order.
struct ModelSize {
  int64_t layers = 0;           ///< number of identical layers
  int64_t heads = 0;            ///< number of attention heads
  int64_t head_width = 0;       ///< the width of a layer is heads · head_width
  int64_t inner = 0;            ///< width between the two linear layers after the attention
  int64_t words = 0;            ///< rows of the token embedding
  int64_t positions = 0;        ///< rows of the position embedding: the longest text
  const char* width_name = "";  ///< the name of the width in the model's options

  int64_t width() const { return heads * head_width; }
  /// Approximate number of parameters: matrices and embeddings, and one dense layer on top, without biases and norms.
  double parameters() const {
    const auto w = static_cast<double>(width());
    return static_cast<double>(layers) * (4 * w * w + 2 * w * static_cast<double>(inner)) +
           static_cast<double>(words + positions) * w + w * w;
  }
};

ModelSize model_size_of(const BertOptions& options);
ModelSize model_size_of(const DistilBertOptions& options);
ModelSize model_size_of(const GptOptions& options);

/// Returns the options with these sizes. If the padding token is outside the vocabulary, it becomes its last token.
BertOptions with_model_size(BertOptions options, const ModelSize& model_size);
DistilBertOptions with_model_size(DistilBertOptions options, const ModelSize& model_size);
GptOptions with_model_size(GptOptions options, const ModelSize& model_size);

}  // namespace bellows::models
