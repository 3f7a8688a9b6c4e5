#pragma once

#include <cstdint>

#include "bellows/models/bert.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/gpt.h"

namespace bellows::models {

/// The sizes of a transformer. In each layer, a smaller model with the same architecture calls the same operators in
/// the same order. A dry run can therefore use a smaller model.
struct ModelSize {
  int64_t layers = 0;           ///< number of identical layers
  int64_t heads = 0;            ///< number of attention heads
  int64_t head_width = 0;       ///< width of an attention head; the width of a layer is heads · head_width
  int64_t inner = 0;            ///< width between the two linear layers that follow the attention
  int64_t words = 0;            ///< vocabulary size: number of rows of the token embedding
  int64_t positions = 0;        ///< number of rows of the position embedding, which is the maximum length of a text
  const char* width_name = "";  ///< name of the width in the model's options

  int64_t width() const { return heads * head_width; }
  /// Approximate number of parameters. It counts matrices, embeddings and one dense layer on top, but not biases or
  /// norms.
  double parameters() const {
    const auto w = static_cast<double>(width());
    return static_cast<double>(layers) * (4 * w * w + 2 * w * static_cast<double>(inner)) +
           static_cast<double>(words + positions) * w + w * w;
  }
};

ModelSize model_size_of(const BertOptions& options);
ModelSize model_size_of(const DistilBertOptions& options);
ModelSize model_size_of(const GptOptions& options);

/// Returns the options with the sizes of `model_size`. If the padding token is outside the new vocabulary, it becomes
/// the last token of the vocabulary.
BertOptions with_model_size(BertOptions options, const ModelSize& model_size);
DistilBertOptions with_model_size(DistilBertOptions options, const ModelSize& model_size);
GptOptions with_model_size(GptOptions options, const ModelSize& model_size);

}  // namespace bellows::models
