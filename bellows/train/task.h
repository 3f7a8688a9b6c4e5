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
  next_token,     ///< logits [N, T, V] of packed texts and the next tokens
  mse,            ///< predictions [N, K] or [N] and target numbers
  huber,          ///< like mse, but with the Huber loss (delta 1)
  bce,            ///< logits [N, K] and K labels of 0 or 1: a sample can have several labels
};

/// Returns whether a model with this loss predicts numbers and not classes.
constexpr bool is_regression(LossKind loss) {
  return loss == LossKind::mse || loss == LossKind::huber;
}

/// The prediction target of a model, with its loss and metrics.
struct Task {
  LossKind loss = LossKind::cross_entropy;
  std::string target = "label";           ///< name of the batch's tensor that the model predicts
  std::vector<std::string> metrics = {};  ///< measured in each evaluation, besides loss and accuracy
  double label_smoothing = 0;
  int64_t outputs = 0;     ///< values that the model predicts per sample or pixel
  bool per_pixel = false;  ///< the model predicts a class for each pixel

  /// Whether the model predicts one class per sample. Accuracy is then the share of correct samples.
  bool classifies_samples() const { return loss == LossKind::cross_entropy && !per_pixel; }
  /// Whether accuracy is defined. It is not defined for predicted numbers.
  bool has_accuracy() const { return !is_regression(loss); }
};

/// Determines the task from the recipe's `loss`, `target` and `metrics`. For `auto` or an empty value, it uses the
/// default of the model.
/// Throws: RecipeError if a loss or metric does not fit the model, or a metric is unknown (the message suggests the
///         nearest name)
Task task_of(const Recipe& recipe, const models::ModelEntry& entry);

/// Splits a comma-separated list such as "a, b".
std::vector<std::string> split_list(const std::string& text);

/// Returns the class number that losses ignore: 255 in uint8 targets, as in segmentation datasets, otherwise −100.
int64_t ignored_class(const at::Tensor& target);
/// Computes the mean loss of a batch.
/// Params: output – the model's first output
///         target – class numbers of any integer type, or as many numbers as `output` has elements. In uint8 class
///                  numbers, 255 is ignored. Floating-point targets of cross_entropy are probabilities [N, C]
/// Throws: c10::ValueError if the shapes do not fit
at::Tensor task_loss(const Task& task, const at::Tensor& output, const at::Tensor& target);
/// Returns the number of correct predictions and the number of all predictions, as 0-d int64 tensors on the output's
/// device.
std::pair<at::Tensor, at::Tensor> count_right(const Task& task, const at::Tensor& output, const at::Tensor& target);

/// Computes the metrics of a task over a complete evaluation.
/// Threads: not thread-safe
class TaskMetrics {
 public:
  explicit TaskMetrics(const Task& task);
  /// Params: see task_loss()
  void update(const at::Tensor& output, const at::Tensor& target);
  /// Returns the metrics with their names.
  /// Params: ranks – the ranks that evaluated the other shares of the data, or null if this process evaluated all data
  std::vector<std::pair<std::string, double>> compute(const comm::Group* ranks);

 private:
  Task task_;
  std::vector<metrics::Metric> metrics_;
};

}  // namespace bellows::train
