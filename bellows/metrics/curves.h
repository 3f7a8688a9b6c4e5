#pragma once

#include <optional>
#include <vector>

#include "bellows/metrics/class_counts.h"
#include "bellows/metrics/metric.h"

namespace bellows::metrics {

/// Options of the metrics that are computed over all thresholds.
///
/// Shapes: binary: preds [N, …] scores of any scale, target [N, …] of 0 and 1
///         multiclass: preds [N, C, …], target [N, …]; each class versus the rest
///         multilabel: preds [N, L, …], target [N, L, …] of 0 and 1
/// Without `thresholds`, the metrics run in exact mode. Every score is then stored (4 bytes), and value() or compute()
/// sorts the scores. With `thresholds`, counts take 16 bytes per threshold and class. Memory and time do not grow with
/// the number of batches.
/// Throws: c10::ValueError from the constructors of the metrics if options are out of range, or if `average` is micro
///         for a multiclass task
struct CurveOptions {
  Task task = Task::binary;
  int64_t num_classes = 0;                   ///< classes of a multiclass task, or labels of a multilabel task
  Average average = Average::macro;          ///< over classes or labels; micro only for multilabel; not used for binary
  std::vector<double> thresholds = {};       ///< increasing, in [0, 1]; empty: exact. See even_thresholds()
  std::optional<int64_t> ignore_index = {};  ///< targets with this value are ignored
  /// The kind of scores. With `thresholds`, scores are converted to probabilities, and `detect` decides for each batch.
  /// In exact mode, the kind matters only for multiclass tasks, because only softmax changes the ranking. For these
  /// tasks, `detect` decides from all scores of the run.
  Scores scores = Scores::detect;
};

/// `count` evenly spaced thresholds from 0 to 1, computed as in torchmetrics (float32).
/// Throws: c10::ValueError if `count` is below 2
std::vector<double> even_thresholds(int64_t count);

/// Area under the ROC curve. It is the probability that a positive sample has a higher score than a negative one, where
/// ties count half. If a class has no positives or no negatives, its result is 0, as in torchmetrics. In this case,
/// scikit-learn returns NaN.
/// Numerics: exact mode counts ranks in int64 instead of adding trapezoids, so the result has float64 precision for any
///           number of samples
/// Cost:     in exact mode, compute() sorts once per class. It sorts about 1 M scores (at least one class) at a time,
///           and uses 60 bytes for each of them.
/// Ref:      torchmetrics.AUROC; sklearn.metrics.roc_auc_score
class AUROC : public Metric {
 public:
  explicit AUROC(const CurveOptions& options);
};

/// Area under the precision-recall curve. It is the mean precision over all positives, without interpolation. The
/// result of a class without positives is 0. In exact mode, multiclass tasks are an exception, as in torchmetrics: the
/// result is NaN, and averages ignore the class.
/// Numerics, cost: like AUROC
/// Ref: torchmetrics.AveragePrecision; sklearn.metrics.average_precision_score
class AveragePrecision : public Metric {
 public:
  explicit AveragePrecision(const CurveOptions& options);
};

}  // namespace bellows::metrics
