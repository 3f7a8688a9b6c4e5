#pragma once

#include "bellows/metrics/metric.h"

namespace bellows::metrics {

/// The weighted mean of numbers, for example a running loss without host synchronization.
/// Shapes:   value of any shape; weight broadcasts to it
/// Numerics: sums in float64. NaN if there are no values or a value is NaN.
/// Cost:     two operators for a scalar value with a number as weight
/// Ref:      torchmetrics.MeanMetric
class Mean : public Metric {
 public:
  Mean();
  using Metric::update;
  /// Counts each element of `value` with `weight`. For the mean loss of a batch, pass the batch size.
  void update(const at::Tensor& value, double weight = 1);
  /// For a number that is already on the host.
  void update(double value, double weight = 1);
};

}  // namespace bellows::metrics
