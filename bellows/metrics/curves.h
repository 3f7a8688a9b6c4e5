#pragma once

#include <optional>
#include <vector>

#include "bellows/metrics/class_counts.h"
#include "bellows/metrics/metric.h"

namespace bellows::metrics {

/// Options of the metrics over all thresholds.
///
/// Shapes:   binary: preds [N, …] scores of any scale, target [N, …] of 0 and 1
///           multiclass: preds [N, C, …], target [N, …]; each class against the others
///           multilabel: preds [N, L, …], target [N, L, …] of 0 and 1
/// Exact, without `thresholds`: every score is kept (4 bytes) and sorted by value() or compute(). With thresholds:
/// counts of 16 bytes a threshold and class, memory and time do not grow with the batches.
struct CurveOptions {
  Task task = Task::binary;
  int64_t num_classes = 0;                   ///< classes of a multiclass task, labels of a multilabel one
  Average average = Average::macro;          ///< over classes or labels; micro: multilabel only. Binary has none
  std::vector<double> thresholds = {};       ///< rising, in [0, 1]; empty: exact. See even_thresholds
  std::optional<int64_t> ignore_index = {};  ///< targets of this value are left out
  /// What scores are. With thresholds they become probabilities, `detect` batch by batch. Exact: only a multiclass
  /// softmax changes ranks; `detect` looks at all scores of the run.
  Scores scores = Scores::detect;
};

/// `count` thresholds from 0 to 1 at even distances, as torchmetrics spaces them (float32).
/// Throws:   c10::ValueError – fewer than 2
std::vector<double> even_thresholds(int64_t count);

/// Area under the ROC curve: the chance that a positive sample scores above a negative one, ties counting half.
/// A class without positives or without negatives has 0, as in torchmetrics (scikit-learn: NaN).
/// Numerics: exact mode: ranks are counted in int64, no trapezoids: exact to float64 for any number of samples
/// Cost:     compute, exact: a sort a class; 60 bytes a score while it sorts, for 1 M scores (at least one class) at a time
/// Ref:      torchmetrics.AUROC; sklearn.metrics.roc_auc_score
class AUROC : public Metric {
 public:
  explicit AUROC(const CurveOptions& options);
};

/// Area under the precision-recall curve as a sum of precisions over the positives, without interpolation. A class
/// without positives has 0; NaN in an exact multiclass task, where averages leave it out (as torchmetrics).
/// Numerics, cost: as AUROC
/// Ref:      torchmetrics.AveragePrecision; sklearn.metrics.average_precision_score
class AveragePrecision : public Metric {
 public:
  explicit AveragePrecision(const CurveOptions& options);
};

}  // namespace bellows::metrics
