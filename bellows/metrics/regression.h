#pragma once

#include "bellows/metrics/metric.h"

namespace bellows::metrics {

/// How the results of several outputs become one.
enum class MultiOutput {
  uniform_average,    ///< their mean
  raw_values,         ///< one result an output: [D]
  variance_weighted,  ///< their mean, weighted by the variance of each output's targets; for R2Score
};

/// Options of the metrics that compare numbers.
///
/// Shapes:   num_outputs = 1: preds and target of any equal shape; D > 1: [N, D]
/// Numerics: differences and sums in float64, whatever the inputs' dtype: any order and grouping of the batches gives
///           the same to 1e-14
struct RegressionOptions {
  int64_t num_outputs = 1;
  MultiOutput multioutput = MultiOutput::uniform_average;
  bool squared = true;  ///< MeanSquaredError: false takes the root of each output's mean
};

/// The mean of (pred − target)². No samples: NaN.
/// Throws:   c10::ValueError – variance_weighted
/// Ref:      torchmetrics.MeanSquaredError; sklearn.metrics.mean_squared_error
class MeanSquaredError : public Metric {
 public:
  explicit MeanSquaredError(const RegressionOptions& options = {});
};

/// The mean of |pred − target|. No samples: NaN.
/// Throws:   c10::ValueError – variance_weighted
/// Ref:      torchmetrics.MeanAbsoluteError; sklearn.metrics.mean_absolute_error
class MeanAbsoluteError : public Metric {
 public:
  explicit MeanAbsoluteError(const RegressionOptions& options = {});
};

/// 1 − Σ(target − pred)² / Σ(target − mean)². Constant targets: 1 when all predictions are right, else 0. Fewer than
/// two samples: NaN, as scikit-learn.
/// Numerics: Σ(target − mean)² comes from Σtarget² and Σtarget: relative error about 1e-16 · mean² / variance. Targets
///           count as constant when their variance is below 1e-13 of their mean square
/// Ref:      torchmetrics.R2Score; sklearn.metrics.r2_score
class R2Score : public Metric {
 public:
  explicit R2Score(const RegressionOptions& options = {});
};

}  // namespace bellows::metrics
