#pragma once

#include <optional>

#include "bellows/metrics/accumulator.h"

namespace bellows::metrics {

/// The kind of labels.
enum class Task {
  binary,      ///< 0 or 1 for each element: preds [N, …], target [N, …]
  multiclass,  ///< one of several classes: preds [N, C, …], or class indices [N, …]; target [N, …]
  multilabel,  ///< 0 or 1 for each of L labels: preds [N, L, …], target [N, L, …]
};

/// The kind of floating-point predictions in a binary or multilabel task, or for a curve.
enum class Scores {
  detect,         ///< logits if a value of the batch is outside [0, 1], otherwise probabilities, as in torchmetrics
  probabilities,  ///< in [0, 1]
  logits,         ///< before sigmoid or softmax
};

/// How the results of all classes are combined.
enum class Average {
  none,      ///< one result per class
  micro,     ///< each decision has equal weight
  macro,     ///< mean over the classes that occur in predictions or targets
  weighted,  ///< mean over classes, weighted by their number of targets
};

/// Counts of predictions and targets. Binary and multilabel tasks, and multiclass tasks with up to 256 classes, use
/// confusion matrices. With more classes, there are three counts per class, which take 1.2 MB for a vocabulary of
/// 50,000.
///
/// Each matrix has additional border rows and columns, which count labels that are out of range. Targets equal to
/// `ignore_index` are not counted.
/// Numerics: counts are int64 and exact; they do not depend on the order or grouping of the batches
class ClassCounts : public Totals {
 public:
  struct Options {
    Task task = Task::multiclass;
    int64_t num_classes = 0;  ///< classes of a multiclass task, or labels of a multilabel task
    int64_t top_k = 1;        ///< multiclass: correct if the target is among the k largest scores
    double threshold = 0.5;   ///< binary, multilabel: probabilities above the threshold become 1
    std::optional<int64_t> ignore_index = {};
    Scores scores = Scores::detect;
    bool matrix = false;  ///< use a confusion matrix for any number of classes
  };
  /// Throws: c10::ValueError if options are out of range
  ClassCounts(std::string who, const Options& options);

  /// Numbers of samples per class, in float64. The shape is [C] for multiclass, [L] for multilabel, and [] for binary
  /// (class 1).
  struct PerClass {
    at::Tensor hits;       ///< samples of the class that were predicted correctly
    at::Tensor wanted;     ///< samples whose target is the class
    at::Tensor predicted;  ///< samples for which the class was predicted
    at::Tensor all;        ///< all samples; undefined for multiclass
  };
  const PerClass& per_class() const;
  /// Returns the confusion matrix in int64: [C, C], [L, 2, 2] or [2, 2]. Rows are targets, columns are predictions.
  /// Throws: c10::Error if this object has counts per class instead of a confusion matrix
  at::Tensor matrix() const;

  const Options& options() const { return options_; }
  /// Returns whether ignore_index is one of the classes.
  bool ignores_a_class() const;
  at::Tensor invalid() const override;
  std::string invalid_text() const override;
  std::unique_ptr<Accumulator> clone() const override { return std::make_unique<ClassCounts>(*this); }

 protected:
  void add(const at::Tensor& preds, const at::Tensor& target) override;
  void use_device(c10::Device device) override;

 private:
  /// Throws: c10::ValueError if shapes or dtypes do not match the task
  void check_batch(const at::Tensor& preds, const at::Tensor& target) const;
  at::Tensor given_labels(const at::Tensor& preds) const;
  at::Tensor predicted_labels(const at::Tensor& preds) const;
  at::Tensor predicted_classes(const at::Tensor& preds, const at::Tensor& target) const;
  at::Tensor counted(const at::Tensor& target) const;
  void add_to_matrix(const at::Tensor& predicted, const at::Tensor& target);
  void add_to_vectors(const at::Tensor& labels, const at::Tensor& target);
  PerClass per_class_of_matrix() const;
  PerClass per_class_of_vectors() const;
  at::Tensor count_invalid() const;
  /// Computes the results that all metrics on these counts need. This happens once per version of the state.
  void summarize() const;

  Options options_;
  int64_t groups_ = 1, classes_ = 2;  // number of matrices, and number of classes in each
  at::Tensor one_;                    // int64 [1], on the device
  mutable PerClass per_class_;
  mutable at::Tensor invalid_;
  mutable uint64_t summarized_ = ~uint64_t{0};
};

/// Returns whether the scores of the batch need sigmoid or softmax, as a 0-d bool tensor on the device.
at::Tensor looks_like_logits(const at::Tensor& scores);

}  // namespace bellows::metrics
