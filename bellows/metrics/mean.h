#pragma once

#include "bellows/metrics/metric.h"

namespace bellows::metrics {

/// The weighted mean of numbers, for example a running loss without host synchronization.
/// Shapes:   `value` has any shape; the weight broadcasts to it
/// Numerics: sums are in float64. The mean is NaN if there are no values or if a value is NaN.
/// Cost:     two operators if `value` is a scalar tensor and the weight is a number
/// Ref:      torchmetrics.MeanMetric
class Mean : public Metric {
 public:
  Mean();
  using Metric::update;
  /// Adds each element of `value` with the weight `weight`. For the mean loss of a batch, pass the batch size as the
  /// weight.
  void update(const at::Tensor& value, double weight = 1);
  /// Adds a number that is already on the host.
  void update(double value, double weight = 1);
};

}  // namespace bellows::metrics
