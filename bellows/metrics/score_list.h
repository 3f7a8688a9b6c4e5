#pragma once

#include <optional>

#include "bellows/metrics/class_counts.h"

namespace bellows::metrics {

/// All scores and labels of a run, in one growing memory block on the device.
///
/// Invalid inputs are NaN scores and labels other than 0 and 1 (multiclass: other than 0 to C - 1). They are detected
/// when the result is read.
/// Cost: 4 bytes per score (8 for float64) and 8 per label; up to twice as much when the block has just grown
class ScoreList : public Accumulator {
 public:
  struct Options {
    Task task = Task::binary;
    int64_t num_classes = 0;  ///< number of classes, or of labels in a multilabel task
    std::optional<int64_t> ignore_index = {};
  };
  /// Throws: c10::ValueError if options are out of range
  ScoreList(std::string who, const Options& options);
  ScoreList(const ScoreList& other);

  /// The scores [N, columns]. A binary task has one column; the other tasks have C or L columns.
  at::Tensor scores() const;
  /// The labels in int64: [N, 1], or [N, L] in a multilabel task.
  at::Tensor labels() const;
  const Options& options() const { return options_; }

  void reset() override { size_ = 0; }
  NamedTensors state() const override;
  void load_state(const NamedTensors& state) override;
  bool additive() const override { return false; }
  at::Tensor invalid() const override;
  std::string invalid_text() const override;
  c10::Device device() const override { return scores_.device(); }
  std::unique_ptr<Accumulator> clone() const override { return std::make_unique<ScoreList>(*this); }

 protected:
  void add(const at::Tensor& preds, const at::Tensor& target) override;
  void add_all_of(const Accumulator& other) override;
  void use_device(c10::Device device) override;

 private:
  void append(const at::Tensor& scores, const at::Tensor& labels);

  Options options_;
  at::Tensor scores_, labels_;  // [capacity, …]; the first size_ rows are used
  int64_t size_ = 0;
};

/// Scores and labels of a batch for curves. The constructor checks them against the task and flattens them to scores
/// [n, columns] in float32 or float64 and labels [n, 1] or [n, L] in int64.
/// Throws: c10::ValueError if shapes or dtypes do not match the task
struct ScoredBatch {
  at::Tensor scores, labels;
  ScoredBatch(const std::string& who, Task task, int64_t num_classes, const at::Tensor& preds,
              const at::Tensor& target);
};

/// Number of score columns and label columns of a task.
int64_t score_columns(Task task, int64_t num_classes);
int64_t label_columns(Task task, int64_t num_classes);
/// Throws: c10::ValueError if num_classes is too small for the task
void check_score_task(const std::string& who, Task task, int64_t num_classes);

}  // namespace bellows::metrics
