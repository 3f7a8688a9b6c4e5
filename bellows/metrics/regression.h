#pragma once

#include "bellows/metrics/metric.h"

namespace bellows::metrics {

/// How the results of several outputs are combined.
enum class MultiOutput {
  uniform_average,    ///< the mean of the results
  raw_values,         ///< one result per output: [D]
  variance_weighted,  ///< the mean, weighted by the variance of each output's targets; only for R2Score
};

/// Options of the regression metrics.
///
/// Shapes:   num_outputs = 1: preds and target of any equal shape; otherwise [N, num_outputs]
/// Numerics: differences and sums are in float64 for any input dtype. Results agree to 1e-14 for any order or grouping
///           of the batches
/// Throws:   c10::ValueError from the constructors of the metrics if num_outputs is below 1
struct RegressionOptions {
  int64_t num_outputs = 1;
  MultiOutput multioutput = MultiOutput::uniform_average;
  bool squared = true;  ///< MeanSquaredError only; false: the root of each output's mean squared error
};

/// The mean of (pred − target)². It is NaN if there are no samples.
/// Throws: c10::ValueError if multioutput is variance_weighted
/// Ref:    torchmetrics.MeanSquaredError; sklearn.metrics.mean_squared_error
class MeanSquaredError : public Metric {
 public:
  explicit MeanSquaredError(const RegressionOptions& options = {});
};

/// The mean of |pred − target|. It is NaN if there are no samples.
/// Throws: c10::ValueError if multioutput is variance_weighted
/// Ref:    torchmetrics.MeanAbsoluteError; sklearn.metrics.mean_absolute_error
class MeanAbsoluteError : public Metric {
 public:
  explicit MeanAbsoluteError(const RegressionOptions& options = {});
};

/// 1 − Σ(target − pred)² / Σ(target − mean)². For constant targets, the result is 1 if all predictions are exact, and 0
/// otherwise. For fewer than two samples, it is NaN, as in scikit-learn.
/// Numerics: Σ(target − mean)² is computed from Σtarget² and Σtarget. The relative error is about 1e-16 · mean² /
///           variance. Targets count as constant if their variance is below 1e-13 of their mean square.
/// Ref:      torchmetrics.R2Score; sklearn.metrics.r2_score
class R2Score : public Metric {
 public:
  explicit R2Score(const RegressionOptions& options = {});
};

}  // namespace bellows::metrics
