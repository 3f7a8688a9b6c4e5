#pragma once

#include <cstdint>

#include "bellows/models/bert.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/gpt.h"

namespace bellows::models {

/// What makes a transformer large. With less of each it is the same network in small: the same operators in the same order.
struct Extent {
  int64_t layers = 0;           ///< that are alike, one behind the other
  int64_t heads = 0;            ///< of attention
  int64_t head_width = 0;       ///< the width of a layer is heads · head_width
  int64_t inner = 0;            ///< width between the two linear layers behind the attention
  int64_t words = 0;            ///< rows of the table of tokens
  int64_t positions = 0;        ///< rows of the table of positions: the longest text
  const char* width_name = "";  ///< what the model's options call the width

  int64_t width() const { return heads * head_width; }
  /// Elements of all parameters, about: matrices and tables, a dense layer on top; no biases, no norms.
  double parameters() const {
    const auto w = static_cast<double>(width());
    return static_cast<double>(layers) * (4 * w * w + 2 * w * static_cast<double>(inner)) +
           static_cast<double>(words + positions) * w + w * w;
  }
};

Extent extent_of(const BertOptions& options);
Extent extent_of(const DistilBertOptions& options);
Extent extent_of(const GptOptions& options);

/// The same options with these numbers in place of their own. Padding that the words no longer reach becomes the last of them.
BertOptions with_extent(BertOptions options, const Extent& extent);
DistilBertOptions with_extent(DistilBertOptions options, const Extent& extent);
GptOptions with_extent(GptOptions options, const Extent& extent);

}  // namespace bellows::models
