#pragma once

#include <optional>

#include "bellows/metrics/metric.h"

namespace bellows::metrics {

struct PerplexityOptions {
  std::optional<int64_t> ignore_index = {};  ///< targets with this value, such as padding, are ignored
};

/// The exponential of the mean negative log-likelihood of the targets. It is NaN if there are no targets.
/// Shapes:   preds [B, T, V] or [N, V] logits, also in float16 and bfloat16; target [B, T] or [N]
/// Numerics: log-softmax is computed in float32 (float64 for float64 logits); sums are in float64
/// Cost:     update() makes a temporary copy of the logits in float32
/// Ref:      torchmetrics.text.Perplexity
class Perplexity : public Metric {
 public:
  explicit Perplexity(const PerplexityOptions& options = {});
};

}  // namespace bellows::metrics
