#pragma once

#include "bellows/metrics/metric.h"

namespace bellows::metrics {

/// The weighted mean of numbers: a running loss without a synchronization.
/// Shapes:   value of any shape; weight broadcasts to it
/// Numerics: float64 sums; NaN values make the mean NaN. No values: NaN
/// Cost:     a scalar value with a number as weight: two operators
/// Ref:      torchmetrics.MeanMetric
class Mean : public Metric {
 public:
  Mean();
  using Metric::update;
  /// Each element of `value` counts `weight` times: give a batch's mean loss with the batch's size.
  void update(const at::Tensor& value, double weight = 1);
  /// A number that is on the host already.
  void update(double value, double weight = 1);
};

}  // namespace bellows::metrics
