#include "bellows/train/task.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "bellows/comm/collectives.h"
#include "bellows/core/error.h"
#include "bellows/metrics/classification.h"
#include "bellows/metrics/curves.h"
#include "bellows/metrics/regression.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

using models::InputKind;
using models::ModelEntry;
using models::OutputKind;

constexpr int64_t ignored = 255;  // in byte masks: no class, as in segmentation datasets

LossKind loss_of(const Recipe& recipe, const ModelEntry& entry) {
  const bool token = entry.output == OutputKind::token;
  const std::map<std::string, LossKind> names = {{"cross_entropy", LossKind::cross_entropy},
                                                 {"next_token", LossKind::next_token},
                                                 {"mse", LossKind::mse},
                                                 {"huber", LossKind::huber},
                                                 {"bce", LossKind::bce}};
  if (recipe.loss == "auto") return token ? LossKind::next_token : LossKind::cross_entropy;
  const LossKind loss = names.at(recipe.loss);
  check_recipe((loss == LossKind::next_token) == token, "loss = ", recipe.loss, " does not fit \"", recipe.model,
               "\", which ", token ? "predicts the next token" : "does not predict tokens", ". Set loss: auto.");
  return loss;
}

/// The metrics that a loss supports; the first ones are measured by default.
struct SupportedMetrics {
  std::vector<std::string> names;
  size_t by_default = 0;
};

SupportedMetrics metrics_for(LossKind loss, const ModelEntry& entry) {
  if (loss == LossKind::next_token) return {};
  if (is_regression(loss)) return {{"mae", "r2", "mse", "rmse"}, 2};
  if (loss == LossKind::bce) return {{"f1", "precision", "recall", "auroc", "average_precision"}, 1};
  if (entry.output == OutputKind::pixel) return {{"iou"}, 1};
  return {{"f1", "precision", "recall", "iou", "top5_accuracy", "auroc", "average_precision"}, 0};
}

metrics::Metric make_metric(const std::string& name, const Task& task) {
  const int64_t outputs = task.outputs;
  if (is_regression(task.loss)) {
    const metrics::RegressionOptions options{.num_outputs = outputs};
    if (name == "mae") return metrics::MeanAbsoluteError(options);
    if (name == "r2") return metrics::R2Score(options);
    metrics::RegressionOptions squared = options;
    squared.squared = name != "rmse";
    return metrics::MeanSquaredError(squared);
  }
  const metrics::Task kind = task.loss == LossKind::bce ? metrics::Task::multilabel : metrics::Task::multiclass;
  if (name == "auroc" || name == "average_precision") {
    metrics::CurveOptions options{.task = kind, .num_classes = outputs};
    options.scores = metrics::Scores::logits;
    if (name == "auroc") return metrics::AUROC(options);
    return metrics::AveragePrecision(options);
  }
  metrics::ClassificationOptions options{.task = kind, .num_classes = outputs};
  options.average = metrics::Average::macro;
  if (task.per_pixel) options.ignore_index = ignored;
  if (task.loss == LossKind::bce) options.scores = metrics::Scores::logits;
  if (name == "precision") return metrics::Precision(options);
  if (name == "recall") return metrics::Recall(options);
  if (name == "iou") return metrics::JaccardIndex(options);
  if (name == "f1") return metrics::F1Score(options);
  options.average = metrics::Average::micro;
  options.top_k = std::min<int64_t>(5, outputs);
  return metrics::Accuracy(options);
}

/// Gathers the rows of all ranks, whose numbers may differ.
at::Tensor gathered_rows(const at::Tensor& own, const comm::Group& ranks) {
  const at::Tensor rows = own.cpu().contiguous();
  const std::string bytes(static_cast<const char*>(rows.const_data_ptr()), rows.nbytes());
  std::vector<at::Tensor> parts;
  for (const std::string& part : comm::all_gather_strings(bytes, ranks)) {
    std::vector<int64_t> sizes = rows.sizes().vec();
    const int64_t row_bytes = c10::multiply_integers(rows.sizes().slice(1)) * static_cast<int64_t>(rows.element_size());
    sizes[0] = static_cast<int64_t>(part.size()) / row_bytes;
    at::Tensor tensor = at::empty(sizes, rows.options());
    std::memcpy(tensor.mutable_data_ptr(), part.data(), part.size());
    parts.push_back(std::move(tensor));
  }
  return at::cat(parts).to(own.device());
}

/// Converts the target to the output's shape and dtype.
at::Tensor numbers_like(const at::Tensor& output, const at::Tensor& target) {
  TORCH_CHECK_VALUE(target.numel() == output.numel(), "loss: the model returned predictions ", output.sizes(),
                    " for targets ", target.sizes(), ". Set num_classes to the number of targets per sample.");
  return target.view_as(output).to(output.scalar_type());
}

}  // namespace

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string part = text.substr(at, end - at);
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    if (!part.empty()) parts.push_back(std::move(part));
    at = end + 1;
  }
  return parts;
}

Task task_of(const Recipe& recipe, const ModelEntry& entry) {
  Task task{.loss = loss_of(recipe, entry),
            .label_smoothing = recipe.label_smoothing,
            .per_pixel = entry.output == OutputKind::pixel};
  if (!task.classifies_samples() && task.loss != LossKind::next_token) task.target = "target";
  check_recipe(recipe.label_smoothing == 0 || task.loss == LossKind::cross_entropy || task.loss == LossKind::next_token,
               "label_smoothing works only with a cross-entropy loss, got loss = ", recipe.loss,
               ". Set label_smoothing: 0.");
  task.metrics = split_list(recipe.metrics);
  const auto [known, by_default] = metrics_for(task.loss, entry);
  for (const std::string& name : task.metrics) {
    check_recipe(std::ranges::find(known, name) != known.end(), "metrics: expected ",
                 known.empty() ? "no metrics for this loss" : c10::Join(", ", known), ", got \"", name, "\".",
                 did_you_mean(name, known));
    check_recipe(std::ranges::count(task.metrics, name) == 1, "metrics: \"", name, "\" is listed twice. Remove one.");
  }
  if (task.metrics.empty()) task.metrics.assign(known.begin(), known.begin() + static_cast<int64_t>(by_default));
  return task;
}

int64_t ignored_class(const at::Tensor& target) {
  return target.scalar_type() == at::kByte ? ignored : -100;
}

at::Tensor task_loss(const Task& task, const at::Tensor& output, const at::Tensor& target) {
  switch (task.loss) {
    case LossKind::mse:
      return at::mse_loss(output, numbers_like(output, target));
    case LossKind::huber:
      return at::huber_loss(output, numbers_like(output, target));
    case LossKind::bce:
      return at::binary_cross_entropy_with_logits(output, numbers_like(output, target));
    default:
      break;
  }
  // Floating-point targets are probabilities [N, C], as MixUp and CutMix create them.
  const at::Tensor classes = target.is_floating_point() ? target : target.to(at::kLong);
  return at::cross_entropy_loss(output, classes, {}, at::Reduction::Mean, ignored_class(target), task.label_smoothing);
}

std::pair<at::Tensor, at::Tensor> count_right(const Task& task, const at::Tensor& output, const at::Tensor& target) {
  const auto all = [&](int64_t count) { return at::scalar_tensor(count, output.options().dtype(at::kLong)); };
  if (task.loss == LossKind::bce) {
    const at::Tensor right = output.gt(0).eq(numbers_like(output, target).gt(0.5));
    return {at::sum(right), all(right.numel())};
  }
  const at::Tensor classes = target.is_floating_point() ? at::argmax(target, 1) : target;
  const at::Tensor right = at::sum(at::argmax(output, 1).eq(classes));
  if (target.scalar_type() == at::kByte) return {right, at::sum(target.ne(ignored))};
  return {right, all(classes.numel())};
}

TaskMetrics::TaskMetrics(const Task& task) : task_(task) {
  for (const std::string& name : task_.metrics) metrics_.push_back(make_metric(name, task_));
}

void TaskMetrics::update(const at::Tensor& output, const at::Tensor& target) {
  if (metrics_.empty()) return;
  const bool numbers = is_regression(task_.loss) || task_.loss == LossKind::bce;
  const at::Tensor shaped = !numbers                      ? target.to(at::kLong)
                            : task_.loss == LossKind::bce ? numbers_like(output, target).to(at::kLong)
                                                          : numbers_like(output, target);
  for (metrics::Metric& metric : metrics_) metric.update(output, shaped);
}

std::vector<std::pair<std::string, double>> TaskMetrics::compute(const comm::Group* ranks) {
  std::vector<std::pair<std::string, double>> values;
  for (size_t i = 0; i < metrics_.size(); ++i) {
    if (ranks) {
      NamedTensors state = metrics_[i].state();
      for (auto& [name, tensor] : state)
        tensor = metrics_[i].additive() ? comm::all_reduce(tensor, *ranks) : gathered_rows(tensor, *ranks);
      metrics_[i].load_state(state);
    }
    values.emplace_back(task_.metrics[i], metrics_[i].compute().item<double>());
  }
  return values;
}

}  // namespace bellows::train
