#pragma once

#include <optional>

#include "bellows/metrics/accumulator.h"

namespace bellows::metrics {

/// The kind of labels.
enum class Task {
  binary,      ///< 0 or 1 for each element: preds [N, …], target [N, …]
  multiclass,  ///< one class of several: preds [N, C, …], or class indices [N, …]; target [N, …]
  multilabel,  ///< 0 or 1 for each of L labels: preds [N, L, …], target [N, L, …]
};

/// The kind of floating-point predictions in a binary or multilabel task, or for a curve.
enum class Scores {
  detect,         ///< logits if any value of the batch is outside [0, 1], as in torchmetrics; depends on the batch
  probabilities,  ///< in [0, 1]
  logits,         ///< before sigmoid or softmax
};

/// How the results of all classes are combined.
enum class Average {
  none,      ///< one result per class
  micro,     ///< all decisions have equal weight
  macro,     ///< mean over the classes that occur in predictions or targets
  weighted,  ///< mean over classes, weighted by their number of targets
};

/// Counts of predictions and targets: confusion matrices for multiclass tasks with up to 256 classes, binary and
/// multilabel tasks. With more classes, three numbers per class: a vocabulary of 50,000 takes 1.2 MB.
///
/// Each matrix has a border that counts labels out of range. Targets equal to `ignore_index` are not counted.
/// Numerics: int64 counts, which are exact and do not depend on the order or grouping of the batches
class ClassCounts : public Totals {
 public:
  struct Options {
    Task task = Task::multiclass;
    int64_t num_classes = 0;  ///< classes of a multiclass task, or labels of a multilabel task
    int64_t top_k = 1;        ///< multiclass: a target among the k largest scores counts as predicted
    double threshold = 0.5;   ///< binary, multilabel: probabilities above it become 1
    std::optional<int64_t> ignore_index = {};
    Scores scores = Scores::detect;
    bool matrix = false;  ///< keep a confusion matrix for any number of classes
  };
  /// Throws: c10::ValueError if options are out of range
  ClassCounts(std::string who, const Options& options);

  /// Numbers of samples per class in float64: [C] for multiclass, [L] for multilabel, [] for binary (class 1).
  struct PerClass {
    at::Tensor hits;       ///< targets of the class that were predicted correctly
    at::Tensor wanted;     ///< targets of the class
    at::Tensor predicted;  ///< predictions of the class
    at::Tensor all;        ///< samples; undefined for multiclass
  };
  const PerClass& per_class() const;
  /// [C, C], [L, 2, 2] or [2, 2], int64; rows are targets, columns predictions.
  at::Tensor matrix() const;

  const Options& options() const { return options_; }
  /// Whether ignore_index is one of the classes.
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
  /// Computes the results that all metrics on these counts need, once per version.
  void summarize() const;

  Options options_;
  int64_t groups_ = 1, classes_ = 2;  // number of matrices, and of classes in each
  at::Tensor one_;                    // int64 [1], on the device
  mutable PerClass per_class_;
  mutable at::Tensor invalid_;
  mutable uint64_t summarized_ = ~uint64_t{0};
};

/// Whether the scores of the batch need sigmoid or softmax: 0-d bool on the device.
at::Tensor looks_like_logits(const at::Tensor& scores);

}  // namespace bellows::metrics
