#pragma once

#include <optional>

#include "bellows/metrics/metric.h"

namespace bellows::metrics {

struct PerplexityOptions {
  std::optional<int64_t> ignore_index = {};  ///< targets of this value are left out: padding
};

/// exp of the mean negative log-likelihood of the targets. No targets: NaN.
/// Shapes:   preds [B, T, V] or [N, V] logits, float16 and bfloat16 too; target [B, T] or [N]
/// Numerics: log-softmax in float32 (float64 for float64), sums in float64
/// Cost:     a copy of the logits in float32 while it updates
/// Ref:      torchmetrics.text.Perplexity
class Perplexity : public Metric {
 public:
  explicit Perplexity(const PerplexityOptions& options = {});
};

}  // namespace bellows::metrics
