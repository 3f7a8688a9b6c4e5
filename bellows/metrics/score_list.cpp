#include "bellows/metrics/score_list.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace bellows::metrics {

int64_t score_columns(Task task, int64_t num_classes) {
  return task == Task::binary ? 1 : num_classes;
}

int64_t label_columns(Task task, int64_t num_classes) {
  return task == Task::multilabel ? num_classes : 1;
}

void check_score_task(const std::string& who, Task task, int64_t num_classes) {
  const int64_t least = task == Task::multiclass ? 2 : task == Task::multilabel ? 1 : 0;
  TORCH_CHECK_VALUE(num_classes >= least, who, ": expected num_classes of at least ", least, ", got ", num_classes,
                    ".");
}

ScoredBatch::ScoredBatch(const std::string& who, Task task, int64_t num_classes, const at::Tensor& preds,
                         const at::Tensor& target) {
  TORCH_CHECK_VALUE(target.defined(), who, ".update: expected labels, got an undefined tensor.");
  TORCH_CHECK_VALUE(preds.is_floating_point() && !target.is_floating_point() && !target.is_complex(), who,
                    ".update: expected floating-point scores and integer labels, got ", preds.scalar_type(), " and ",
                    target.scalar_type(), ".");
  const int64_t columns = score_columns(task, num_classes);
  std::vector<int64_t> expected = target.sizes().vec();
  if (task == Task::multiclass && !expected.empty()) expected.insert(expected.begin() + 1, columns);
  const bool fits = preds.dim() >= (task == Task::binary ? 1 : 2) && preds.sizes() == c10::IntArrayRef(expected) &&
                    (task != Task::multilabel || preds.size(1) == columns);
  TORCH_CHECK_VALUE(fits, who, ".update: expected preds ",
                    task == Task::binary ? std::string("[N, …]") : c10::str("[N, ", columns, ", …]"), " and labels ",
                    task == Task::multiclass ? "[N, …]" : "of the same shape", "; got ", preds.sizes(), " and ",
                    target.sizes(), ".");
  const auto rows = [](const at::Tensor& t, int64_t width) {  // [N, width, …] → [n, width]
    return width == 1 || t.dim() == 2 ? t.reshape({-1, width}) : t.movedim(1, -1).reshape({-1, width});
  };
  scores = rows(preds.scalar_type() == at::kDouble ? preds : preds.to(at::kFloat), columns);
  labels = rows(target.to(at::kLong), label_columns(task, num_classes));
}

ScoreList::ScoreList(std::string who, const Options& o)
    : Accumulator(
          (check_score_task(who, o.task, o.num_classes), who),
          c10::str("scores(task=", static_cast<int>(o.task), ", num_classes=", score_columns(o.task, o.num_classes),
                   ", ignore_index=", o.ignore_index ? std::to_string(*o.ignore_index) : "none", ")")),
      options_(o),
      scores_(at::empty({0, score_columns(o.task, o.num_classes)}, at::kFloat)),
      labels_(at::empty({0, label_columns(o.task, o.num_classes)}, at::kLong)) {}

ScoreList::ScoreList(const ScoreList& other)
    : Accumulator(other),
      options_(other.options_),
      scores_(other.scores()),
      labels_(other.labels()),
      size_(other.size_) {
  const PlainTensors plain;
  scores_ = scores_.clone();
  labels_ = labels_.clone();
}

at::Tensor ScoreList::scores() const {
  return scores_.narrow(0, 0, size_);
}

at::Tensor ScoreList::labels() const {
  return labels_.narrow(0, 0, size_);
}

void ScoreList::use_device(c10::Device device) {
  scores_ = scores_.to(device);
  labels_ = labels_.to(device);
}

void ScoreList::add(const at::Tensor& preds, const at::Tensor& target) {
  const ScoredBatch batch(who(), options_.task, options_.num_classes, preds, target);
  append(batch.scores, batch.labels);
}

/// Doubles the block when it is full, so that each score is copied at most twice on average.
void ScoreList::append(const at::Tensor& scores, const at::Tensor& labels) {
  if (size_ == 0 && scores.scalar_type() != scores_.scalar_type()) scores_ = scores_.to(scores.scalar_type());
  TORCH_CHECK_VALUE(scores.scalar_type() == scores_.scalar_type(), who(), ".update: expected scores of ",
                    scores_.scalar_type(), ", as in earlier batches, got ", scores.scalar_type(), ".");
  const int64_t more = scores.size(0), needed = size_ + more;
  if (needed > scores_.size(0)) {
    const int64_t capacity = std::max<int64_t>({needed, 2 * scores_.size(0), 1024});
    for (at::Tensor* block : {&scores_, &labels_}) {
      at::Tensor larger = at::empty({capacity, block->size(1)}, block->options());
      larger.narrow(0, 0, size_).copy_(block->narrow(0, 0, size_));
      *block = larger;
    }
  }
  scores_.narrow(0, size_, more).copy_(scores);
  labels_.narrow(0, size_, more).copy_(labels);
  size_ = needed;
}

void ScoreList::add_all_of(const Accumulator& other) {
  const auto& list = static_cast<const ScoreList&>(other);
  if (list.size_ == 0) return;
  if (size_ == 0) use_device(list.device());
  append(list.scores().to(device()), list.labels().to(device()));
}

NamedTensors ScoreList::state() const {
  const PlainTensors plain;
  return {{"scores", scores().clone()}, {"labels", labels().clone()}};
}

void ScoreList::load_state(const NamedTensors& state) {
  const PlainTensors plain;
  const auto find = [&](const char* name, const at::Tensor& like) {
    const auto found = std::find_if(state.begin(), state.end(), [&](const auto& s) { return s.first == name; });
    TORCH_CHECK_VALUE(state.size() == 2 && found != state.end(), who(),
                      ".load_state: expected \"scores\" and \"labels\". The state belongs to another metric.");
    TORCH_CHECK_VALUE(found->second.dim() == 2 && found->second.size(1) == like.size(1), who(), ".load_state: \"", name,
                      "\" has shape ", found->second.sizes(), ", expected [N, ", like.size(1), "].");
    return found->second;
  };
  const at::Tensor scores = find("scores", scores_), labels = find("labels", labels_);
  TORCH_CHECK_VALUE(scores.is_floating_point() && scores.size(0) == labels.size(0), who(),
                    ".load_state: ", scores.size(0), " scores of ", scores.scalar_type(), " and ", labels.size(0),
                    " labels.");
  const bool exact = scores.scalar_type() == at::kDouble;
  scores_ = scores.to(exact ? at::kDouble : at::kFloat, false, /*copy=*/true);
  labels_ = labels.to(at::kLong, false, /*copy=*/true);
  size_ = scores.size(0);
}

at::Tensor ScoreList::invalid() const {
  const int64_t classes = options_.task == Task::multiclass ? options_.num_classes : 2;
  at::Tensor wrong = labels().lt(0).bitwise_or_(labels().ge(classes));
  if (options_.ignore_index) wrong.bitwise_and_(labels().ne(*options_.ignore_index));
  return wrong.sum() + at::isnan(scores()).sum();
}

std::string ScoreList::invalid_text() const {
  return "scores are NaN or labels are neither a class nor ignore_index";
}

}  // namespace bellows::metrics
