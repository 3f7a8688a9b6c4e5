#pragma once

#include <optional>

#include "bellows/metrics/class_counts.h"

namespace bellows::metrics {

/// Counts of positive and negative labels for each bin of scores. Memory does not grow with the number of batches.
/// Numerics: counts are int64 and exact; they do not depend on the order or grouping of the batches
class ScoreBins : public Totals {
 public:
  struct Options {
    Task task = Task::binary;
    int64_t num_classes = 0;         ///< number of classes, or of labels in a multilabel task
    std::vector<double> thresholds;  ///< increasing bounds of the bins, in [0, 1]
    std::optional<int64_t> ignore_index = {};
    Scores scores = Scores::detect;
  };
  /// Throws: c10::ValueError if options are out of range
  ScoreBins(std::string who, const Options& options);

  /// For each threshold, returns the number of labels whose score is at least this threshold, as int64 [2, columns, T].
  /// Index 0 is for negatives, index 1 for positives. The first threshold can be above 0.
  at::Tensor reached() const;
  /// Returns the number of all labels, as int64 [2, columns].
  at::Tensor all() const;
  const Options& options() const { return options_; }

  at::Tensor invalid() const override { return read(0)[0]; }
  std::string invalid_text() const override;
  std::unique_ptr<Accumulator> clone() const override { return std::make_unique<ScoreBins>(*this); }

 protected:
  void add(const at::Tensor& preds, const at::Tensor& target) override;
  void use_device(c10::Device device) override;

 private:
  at::Tensor probabilities(const at::Tensor& scores) const;
  at::Tensor bins() const;

  Options options_;
  int64_t columns_ = 1;
  at::Tensor bounds_;  // float32, on the device
};

/// Converts `scores` [n, columns] to probabilities: softmax over the columns for a multiclass task, otherwise sigmoid.
at::Tensor to_probabilities(const at::Tensor& scores, Task task);

}  // namespace bellows::metrics
