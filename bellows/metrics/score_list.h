#pragma once

#include <optional>

#include "bellows/metrics/class_counts.h"

namespace bellows::metrics {

/// All scores and labels of a run, in one growing block of memory on the device.
///
/// Labels other than 0 and 1 (multiclass: 0 to C - 1) and NaN scores are detected when the result is read.
/// Cost: 4 bytes per score (8 for float64) and 8 per label; up to twice as much directly after the block has grown
class ScoreList : public Accumulator {
 public:
  struct Options {
    Task task = Task::binary;
    int64_t num_classes = 0;  ///< classes, or labels of a multilabel task
    std::optional<int64_t> ignore_index = {};
  };
  /// Throws: c10::ValueError if options are out of range
  ScoreList(std::string who, const Options& options);
  ScoreList(const ScoreList& other);

  /// [N, columns]: one column (binary), C, or L.
  at::Tensor scores() const;
  /// [N, 1], or [N, L] in a multilabel task; int64.
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

/// Scores and labels of a batch for curves, checked against the task and flattened: scores [n, columns] in float32 or
/// float64, labels [n, 1] or [n, L] in int64.
/// Throws: c10::ValueError if shapes or dtypes do not match the task
struct ScoredBatch {
  at::Tensor scores, labels;
  ScoredBatch(const std::string& who, Task task, int64_t num_classes, const at::Tensor& preds,
              const at::Tensor& target);
};

/// Number of score columns and label columns of a task.
int64_t score_columns(Task task, int64_t num_classes);
int64_t label_columns(Task task, int64_t num_classes);
/// Throws: c10::ValueError if there are too few classes
void check_score_task(const std::string& who, Task task, int64_t num_classes);

}  // namespace bellows::metrics
