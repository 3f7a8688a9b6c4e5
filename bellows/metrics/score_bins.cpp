#include "bellows/metrics/score_bins.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <iomanip>

#include "bellows/metrics/score_list.h"

namespace bellows::metrics {

namespace {

ScoreBins::Options checked(const std::string& who, const ScoreBins::Options& o) {
  check_score_task(who, o.task, o.num_classes);
  bool rising = o.thresholds.size() >= 2;
  for (size_t i = 0; i < o.thresholds.size(); ++i) {
    rising =
        rising && o.thresholds[i] >= 0 && o.thresholds[i] <= 1 && (i == 0 || o.thresholds[i] > o.thresholds[i - 1]);
  }
  TORCH_CHECK_VALUE(rising, who, ": expected at least two increasing thresholds in [0, 1], got ", o.thresholds, ".");
  return o;
}

std::string bins_key(const ScoreBins::Options& o) {
  return c10::str("bins(task=", static_cast<int>(o.task), ", num_classes=", score_columns(o.task, o.num_classes),
                  ", thresholds=", std::setprecision(17), o.thresholds,
                  ", ignore_index=", o.ignore_index ? std::to_string(*o.ignore_index) : "none",
                  ", scores=", static_cast<int>(o.scores), ")");
}

}  // namespace

at::Tensor to_probabilities(const at::Tensor& scores, Task task) {
  return task == Task::multiclass ? at::softmax(scores, 1) : at::sigmoid(scores);
}

// Two extra places before the bins, for invalid and ignored inputs.
ScoreBins::ScoreBins(std::string who, const Options& o)
    : Totals(who, bins_key(o),
             {{"counts",
               {2 + 2 * score_columns(o.task, o.num_classes) * (static_cast<int64_t>(o.thresholds.size()) + 1)},
               at::kLong}}),
      options_(checked(who, o)),
      columns_(score_columns(o.task, o.num_classes)) {}

void ScoreBins::use_device(c10::Device device) {
  Totals::use_device(device);
  if (!bounds_.defined() || bounds_.device() != device) {
    bounds_ = at::tensor(options_.thresholds, at::kFloat).to(device, /*non_blocking=*/true);
  }
}

at::Tensor ScoreBins::probabilities(const at::Tensor& scores) const {
  if (options_.scores == Scores::probabilities) return scores;
  const at::Tensor converted = to_probabilities(scores, options_.task);
  return options_.scores == Scores::logits ? converted : at::where(looks_like_logits(scores), converted, scores);
}

void ScoreBins::add(const at::Tensor& preds, const at::Tensor& target) {
  const ScoredBatch batch(who(), options_.task, options_.num_classes, preds, target);
  const auto bins = static_cast<int64_t>(options_.thresholds.size()) + 1;
  const bool multiclass = options_.task == Task::multiclass;
  const at::Tensor column = at::arange(columns_, batch.labels.options());
  const at::Tensor positive = batch.labels.eq(multiclass ? column : at::ones({}, batch.labels.options()));
  const at::Tensor bounds = bounds_.to(batch.scores.scalar_type());
  at::Tensor place = at::bucketize(probabilities(batch.scores), bounds, false, /*right=*/true);
  place.add_(column, bins).add_(positive, columns_ * bins).add_(2);
  at::Tensor wrong = batch.labels.lt(0).bitwise_or_(batch.labels.ge(multiclass ? columns_ : 2));
  if (options_.ignore_index) {
    const at::Tensor ignored = batch.labels.eq(*options_.ignore_index);
    wrong.bitwise_and_(~ignored);
    place.masked_fill_(ignored, 1);
  }
  place.masked_fill_(wrong | at::isnan(batch.scores), 0);
  total(0).index_add_(0, place.view(-1), at::ones({1}, place.options()).expand({place.numel()}));
}

/// [2, columns, T + 1]: bin i holds the scores in [thresholds[i - 1], thresholds[i]).
at::Tensor ScoreBins::bins() const {
  return read(0).slice(0, 2).view({2, columns_, -1});
}

at::Tensor ScoreBins::reached() const {
  return bins().slice(2, 1).flip(2).cumsum(2).flip(2);
}

at::Tensor ScoreBins::all() const {
  return bins().sum(2);
}

std::string ScoreBins::invalid_text() const {
  return "scores are NaN or have a label that is neither a class nor ignore_index";
}

}  // namespace bellows::metrics
