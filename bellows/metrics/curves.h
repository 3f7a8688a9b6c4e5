#pragma once

#include <optional>
#include <vector>

#include "bellows/metrics/class_counts.h"
#include "bellows/metrics/metric.h"

namespace bellows::metrics {

/// Options of the metrics over all thresholds.
///
/// Shapes: binary: preds [N, …] scores of any scale, target [N, …] of 0 and 1
///         multiclass: preds [N, C, …], target [N, …]; each class versus the rest
///         multilabel: preds [N, L, …], target [N, L, …] of 0 and 1
/// Without `thresholds`, results are exact: every score is stored (4 bytes) and sorted by value() or compute(). With
/// thresholds, counts take 16 bytes per threshold and class; memory and time do not grow with the number of batches.
struct CurveOptions {
  Task task = Task::binary;
  int64_t num_classes = 0;                   ///< classes of a multiclass task, or labels of a multilabel task
  Average average = Average::macro;          ///< over classes or labels; micro only for multilabel; not used for binary
  std::vector<double> thresholds = {};       ///< increasing, in [0, 1]; empty: exact. See even_thresholds()
  std::optional<int64_t> ignore_index = {};  ///< targets with this value are ignored
  /// Kind of scores. With thresholds, they are converted to probabilities, and `detect` decides for each batch. In
  /// exact mode, only a multiclass softmax changes the ranking, and `detect` decides from all scores of the run.
  Scores scores = Scores::detect;
};

/// `count` evenly spaced thresholds from 0 to 1, computed as in torchmetrics (float32).
/// Throws: c10::ValueError if `count` is below 2
std::vector<double> even_thresholds(int64_t count);

/// Area under the ROC curve: the probability that a positive sample has a higher score than a negative one, where ties
/// count half. The result of a class without positives or without negatives is 0, as in torchmetrics (scikit-learn:
/// NaN).
/// Numerics: in exact mode, ranks are counted in int64 without trapezoids, which is exact to float64 for any number of
///           samples
/// Cost:     compute() in exact mode sorts once per class. While sorting, it uses 60 bytes per score, for 1 M scores
///           (at least one class) at a time.
/// Ref:      torchmetrics.AUROC; sklearn.metrics.roc_auc_score
class AUROC : public Metric {
 public:
  explicit AUROC(const CurveOptions& options);
};

/// Area under the precision-recall curve as a sum of precisions over the positives, without interpolation. The result
/// of a class without positives is 0. In an exact multiclass task it is NaN, and averages ignore the class, as in
/// torchmetrics.
/// Numerics, cost: as AUROC
/// Ref: torchmetrics.AveragePrecision; sklearn.metrics.average_precision_score
class AveragePrecision : public Metric {
 public:
  explicit AveragePrecision(const CurveOptions& options);
};

}  // namespace bellows::metrics
