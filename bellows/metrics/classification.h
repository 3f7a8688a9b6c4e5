#pragma once

#include <optional>

#include "bellows/metrics/class_counts.h"
#include "bellows/metrics/metric.h"

namespace bellows::metrics {

/// Options of the metrics that compare predicted labels with true labels.
///
/// Shapes:   binary: preds [N, …] – labels, probabilities or logits; target [N, …] of 0 and 1
///           multiclass: preds [N, C, …] – scores of any scale, or [N, …] – class indices; target [N, …]
///           multilabel: preds [N, L, …] – labels, probabilities or logits; target [N, L, …] of 0 and 1
/// Results are in float64. The result is one number, or one number per class [C] or label [L] with Average::none.
/// Binary results refer to class 1. If there are no samples, the result is 0 unless `zero_division` is set. In a
/// MetricCollection, metrics with equal task, num_classes, top_k, threshold, ignore_index and scores share their
/// counts. A ConfusionMatrix of more than 256 classes has its own counts.
/// Numerics: counts are exact; results equal torchmetrics 1.8 and scikit-learn to 1e-6 (tests/metrics/golden_test.cpp)
/// Throws:   c10::ValueError from the constructors of the metrics if options are out of range
struct ClassificationOptions {
  Task task = Task::multiclass;
  int64_t num_classes = 0;                   ///< classes of a multiclass task, or labels of a multilabel task
  std::optional<Average> average = {};       ///< default: micro for Accuracy, otherwise macro; not used for binary
  int64_t top_k = 1;                         ///< multiclass: correct if the target is among the k largest scores
  double threshold = 0.5;                    ///< binary and multilabel: probabilities above the threshold become 1
  std::optional<int64_t> ignore_index = {};  ///< targets with this value are ignored
  double zero_division = 0;                  ///< result of 0/0, for example for a class without predictions or targets
  Scores scores = Scores::detect;            ///< binary and multilabel: kind of floating-point preds
};

/// The fraction of correct decisions. With Average::macro, it is the mean recall of the classes. With `top_k`, it is
/// the top-k accuracy.
/// Ref: torchmetrics.Accuracy; sklearn.metrics.accuracy_score, balanced_accuracy_score
class Accuracy : public Metric {
 public:
  explicit Accuracy(const ClassificationOptions& options);
};

/// tp / (tp + fp): the fraction of positive predictions that are correct.
/// Ref: torchmetrics.Precision; sklearn.metrics.precision_score
class Precision : public Metric {
 public:
  explicit Precision(const ClassificationOptions& options);
};

/// tp / (tp + fn): the fraction of positive targets that were predicted as positive.
/// Ref: torchmetrics.Recall; sklearn.metrics.recall_score
class Recall : public Metric {
 public:
  explicit Recall(const ClassificationOptions& options);
};

/// The weighted harmonic mean of precision and recall: (1 + β²) tp / ((1 + β²) tp + β² fn + fp).
/// Throws: c10::ValueError if beta is not above 0
/// Ref:    torchmetrics.FBetaScore; sklearn.metrics.fbeta_score
class FBetaScore : public Metric {
 public:
  FBetaScore(double beta, const ClassificationOptions& options) : FBetaScore("FBetaScore", beta, options) {}

 protected:
  FBetaScore(const char* name, double beta, const ClassificationOptions& options);
};

/// The harmonic mean of precision and recall.
/// Ref: torchmetrics.F1Score; sklearn.metrics.f1_score
class F1Score : public FBetaScore {
 public:
  explicit F1Score(const ClassificationOptions& options) : FBetaScore("F1Score", 1, options) {}
};

/// Intersection over union: tp / (tp + fp + fn).
/// Ref:      torchmetrics.JaccardIndex; sklearn.metrics.jaccard_score
class JaccardIndex : public Metric {
 public:
  explicit JaccardIndex(const ClassificationOptions& options);
};

/// The divisor that normalizes a confusion matrix.
enum class Normalize {
  none,       ///< no divisor: counts in int64
  target,     ///< the sum of the row, which gives fractions of each true class
  predicted,  ///< the sum of the column
  all,        ///< the sum of the matrix
};

/// Counts the samples of each true class (row) that were predicted as each class (column). The shape is [C, C]. It is
/// [2, 2] for binary and [L, 2, 2] for multilabel. Normalization treats 0/0 as 0.
/// Cost: 8 C² bytes
/// Ref:  torchmetrics.ConfusionMatrix; sklearn.metrics.confusion_matrix
class ConfusionMatrix : public Metric {
 public:
  explicit ConfusionMatrix(const ClassificationOptions& options, Normalize normalize = Normalize::none);
};

}  // namespace bellows::metrics
