#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/metrics/metric.h"
#include "bellows/models/registry.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

enum class LossKind {
  cross_entropy,  ///< logits [N, C] and labels [N], or per pixel: [N, C, H, W] and [N, H, W]
  next_token,     ///< logits [N, T, V] of packed texts, and the next tokens
  mse,            ///< predictions [N, K] or [N], and numbers
  huber,          ///< like mse, with delta 1
  bce,            ///< logits [N, K] and 0 or 1 for each: a sample can have several labels
};

/// The prediction target of a model, and its loss and metrics.
struct Task {
  LossKind loss = LossKind::cross_entropy;
  std::string target = "label";           ///< the tensor of a batch that the model predicts
  std::vector<std::string> metrics = {};  ///< names of metrics for each evaluation, in addition to loss and accuracy
  double label_smoothing = 0;
  int64_t outputs = 0;     ///< values that the model predicts per sample or pixel
  bool per_pixel = false;  ///< predict a class for each pixel

  /// Labels are class numbers, one for each sample. Accuracy is the share of correct samples.
  bool classifies_samples() const { return loss == LossKind::cross_entropy && !per_pixel; }
  /// Predicted numbers have no accuracy.
  bool has_accuracy() const { return loss != LossKind::mse && loss != LossKind::huber; }
};

/// Determines the task from the recipe's `loss`, `target` and `metrics`. If they are `auto` or empty, it selects those
/// that fit the model.
/// Throws: RecipeError if a loss or metric does not fit the model or a metric is unknown (the message suggests the
///         nearest name)
Task task_of(const Recipe& recipe, const models::ModelEntry& entry);

/// Splits "a, b" into a list.
std::vector<std::string> split_list(const std::string& text);

/// The mean loss of a batch.
/// Params: output – the model's first output
///         target – class numbers (any integer type; 255 in bytes is ignored), or as many numbers as `output` has
///                  elements
/// Throws: c10::ValueError if the shapes do not fit
at::Tensor task_loss(const Task& task, const at::Tensor& output, const at::Tensor& target);
/// The number of correct predictions and the number of all predictions: 0-d int64 tensors on the output's device.
std::pair<at::Tensor, at::Tensor> count_right(const Task& task, const at::Tensor& output, const at::Tensor& target);

/// The metrics of a task over a complete evaluation.
/// Threads: not thread-safe
class TaskMetrics {
 public:
  explicit TaskMetrics(const Task& task);
  /// Params: like task_loss()
  void update(const at::Tensor& output, const at::Tensor& target);
  /// Params: ranks – each of them has seen a share of the data; null: this process has seen all
  std::vector<std::pair<std::string, double>> compute(const comm::Group* ranks);

 private:
  Task task_;
  std::vector<metrics::Metric> metrics_;
};

}  // namespace bellows::train
