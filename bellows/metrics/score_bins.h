#pragma once

#include <optional>

#include "bellows/metrics/class_counts.h"

namespace bellows::metrics {

/// Counts of positive and negative labels by the bin of their score. Memory does not grow with the number of batches.
/// Numerics: int64 counts, which are exact and do not depend on the order or grouping of the batches
class ScoreBins : public Totals {
 public:
  struct Options {
    Task task = Task::binary;
    int64_t num_classes = 0;         ///< classes, or labels of a multilabel task
    std::vector<double> thresholds;  ///< bounds of the bins, increasing, in [0, 1]
    std::optional<int64_t> ignore_index = {};
    Scores scores = Scores::detect;
  };
  /// Throws: c10::ValueError if options are out of range
  ScoreBins(std::string who, const Options& options);

  /// Number of labels whose score is at least the threshold: int64 [2, columns, T], for negatives and positives. The
  /// first threshold does not have to be 0.
  at::Tensor reached() const;
  /// Number of all labels: int64 [2, columns].
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
