#include "bellows/metrics/class_counts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <iomanip>

namespace bellows::metrics {

namespace {

constexpr int64_t largest_matrix = 256;  // number of classes; the int64 matrix then takes 0.5 MB

const char* task_name(Task task) {
  return task == Task::binary ? "binary" : task == Task::multiclass ? "multiclass" : "multilabel";
}

std::string shapes_of(const ClassCounts::Options& o) {
  if (o.task == Task::multiclass)
    return c10::str("[N, ", o.num_classes, ", …] (scores) or [N, …] (class numbers) and labels [N, …]");
  return o.task == Task::binary ? "[N, …] and labels of the same shape"
                                : c10::str("[N, ", o.num_classes, ", …] and labels of the same shape");
}

std::string counts_key(const ClassCounts::Options& o) {
  return c10::str("counts(task=", task_name(o.task), ", num_classes=", o.task == Task::binary ? 2 : o.num_classes,
                  ", top_k=", o.top_k, ", threshold=", std::setprecision(17), o.threshold,
                  ", ignore_index=", o.ignore_index ? std::to_string(*o.ignore_index) : "none",
                  ", scores=", static_cast<int>(o.scores), ", matrix=", o.matrix, ")");
}

/// Checks the options and sets dependent ones, so that equal options have equal keys. A matrix has a border of one
/// element on each side, a vector one element at each end.
ClassCounts::Options complete(const std::string& who, ClassCounts::Options o) {
  const bool multiclass = o.task == Task::multiclass;
  TORCH_CHECK_VALUE(o.task == Task::binary || o.num_classes >= (multiclass ? 2 : 1), who,
                    ": expected num_classes of at least ", multiclass ? 2 : 1, " for a ", task_name(o.task),
                    " task, got ", o.num_classes, ".");
  TORCH_CHECK_VALUE(o.threshold >= 0 && o.threshold <= 1, who, ": expected a threshold in [0, 1], got ", o.threshold,
                    ". The threshold is a probability, also for logits.");
  TORCH_CHECK_VALUE(o.top_k >= 1 && (o.top_k == 1 || (multiclass && o.top_k <= o.num_classes)), who,
                    ": expected top_k from 1 to num_classes, and 1 unless the task is multiclass; got ", o.top_k, ".");
  o.matrix = o.matrix || !multiclass || o.num_classes <= largest_matrix;
  return o;
}

std::vector<int64_t> counts_sizes(const ClassCounts::Options& o) {
  if (!o.matrix) return {3, o.num_classes + 2};
  const int64_t side = (o.task == Task::multiclass ? o.num_classes : 2) + 2;
  return {o.task == Task::multilabel ? o.num_classes : 1, side, side};
}

/// Adds 1, or the weight, to the counts at `index`. Indices may repeat.
void count_at(const at::Tensor& counts, const at::Tensor& index, const at::Tensor& weight) {
  counts.index_add_(0, index, weight.expand(index.sizes()));
}

}  // namespace

at::Tensor looks_like_logits(const at::Tensor& scores) {
  const auto [least, largest] = at::aminmax(scores);
  return least.lt(0) | largest.gt(1);
}

ClassCounts::ClassCounts(std::string who, const Options& options)
    : Totals(who, counts_key(complete(who, options)), {{"counts", counts_sizes(complete(who, options)), at::kLong}}),
      options_(complete(who, options)) {
  if (options_.task == Task::multiclass) classes_ = options_.num_classes;
  if (options_.task == Task::multilabel) groups_ = options_.num_classes;
}

void ClassCounts::check_batch(const at::Tensor& preds, const at::Tensor& target) const {
  TORCH_CHECK_VALUE(target.defined(), who(), ".update: expected labels, got an undefined tensor.");
  TORCH_CHECK_VALUE(!target.is_floating_point() && !target.is_complex() && !preds.is_complex(), who(),
                    ".update: expected integer labels, got preds of ", preds.scalar_type(), " and labels of ",
                    target.scalar_type(), ".");
  const bool scores_a_class = options_.task == Task::multiclass && preds.is_floating_point();
  std::vector<int64_t> expected = target.sizes().vec();
  if (scores_a_class) expected.insert(expected.begin() + (expected.empty() ? 0 : 1), classes_);
  const bool enough =
      target.dim() >= 1 && (options_.task != Task::multilabel || (target.dim() >= 2 && target.size(1) == groups_));
  TORCH_CHECK_VALUE(enough && preds.sizes() == c10::IntArrayRef(expected), who(), ".update (", task_name(options_.task),
                    "): expected preds ", shapes_of(options_), "; got preds ", preds.sizes(), " of ",
                    preds.scalar_type(), " and labels ", target.sizes(), ".");
  TORCH_CHECK_VALUE(options_.top_k == 1 || scores_a_class, who(), ".update: top_k = ", options_.top_k,
                    " needs scores [N, ", classes_, ", …], got class numbers.");
}

/// Labels given by the caller can be outside the matrix and are then counted on the border.
at::Tensor ClassCounts::given_labels(const at::Tensor& preds) const {
  return preds.scalar_type() == at::kBool ? preds : preds.to(at::kLong).clamp(-1, classes_);
}

/// Binary and multilabel: 0 or 1 for each element.
at::Tensor ClassCounts::predicted_labels(const at::Tensor& preds) const {
  const double logit = std::log(options_.threshold / (1 - options_.threshold));
  if (options_.scores == Scores::probabilities) return preds.gt(options_.threshold);
  if (options_.scores == Scores::logits) return preds.gt(logit);
  return at::where(looks_like_logits(preds), preds.gt(logit), preds.gt(options_.threshold));
}

/// Multiclass: the target if it is among the k best classes, otherwise the best class.
at::Tensor ClassCounts::predicted_classes(const at::Tensor& preds, const at::Tensor& target) const {
  if (options_.top_k == 1) return at::argmax(preds, 1);
  const at::Tensor best = std::get<1>(at::topk(preds, options_.top_k, 1));
  return at::where(best.eq(target.unsqueeze(1)).any(1), target, best.select(1, 0));
}

void ClassCounts::add(const at::Tensor& preds, const at::Tensor& target) {
  check_batch(preds, target);
  const at::Tensor labels = target.to(at::kLong);
  const at::Tensor predicted = !preds.is_floating_point()          ? given_labels(preds)
                               : options_.task == Task::multiclass ? predicted_classes(preds, labels)
                                                                   : predicted_labels(preds);
  options_.matrix ? add_to_matrix(predicted, labels) : add_to_vectors(predicted, labels);
}

void ClassCounts::use_device(c10::Device device) {
  Totals::use_device(device);
  if (!one_.defined() || one_.device() != device) one_ = at::ones({1}, at::TensorOptions(at::kLong).device(device));
}

bool ClassCounts::ignores_a_class() const {
  return options_.ignore_index && *options_.ignore_index >= 0 && *options_.ignore_index < classes_;
}

/// 1 for counted targets; a single element if all are counted. If `ignore_index` is one of the classes, it is removed
/// when reading.
at::Tensor ClassCounts::counted(const at::Tensor& target) const {
  if (!options_.ignore_index || ignores_a_class()) return one_;
  return target.ne(*options_.ignore_index).to(at::kLong).reshape(-1);
}

void ClassCounts::add_to_matrix(const at::Tensor& predicted, const at::Tensor& target) {
  const int64_t side = classes_ + 2;
  at::Tensor place = at::add(predicted, target.clamp(-1, classes_), side).add_(side + 1);
  if (groups_ > 1) {
    std::vector<int64_t> along_labels(static_cast<size_t>(target.dim()), 1);
    along_labels[1] = groups_;
    place.add_(at::arange(groups_, target.options()).mul_(side * side).view(along_labels));
  }
  count_at(total(0).view(-1), place.reshape(-1), counted(target));
}

/// Rows: targets, predictions, correct predictions.
void ClassCounts::add_to_vectors(const at::Tensor& labels, const at::Tensor& target) {
  const at::Tensor wanted = target.reshape(-1), predicted = labels.reshape(-1);
  at::Tensor usable = wanted.ge(0) & wanted.lt(classes_);
  if (options_.ignore_index) usable.bitwise_and_(wanted.ne(*options_.ignore_index));
  const at::Tensor place = wanted.clamp(-1, classes_).add_(1), weight = usable.to(at::kLong);
  const at::Tensor& counts = total(0);
  count_at(counts[0], place, counted(target));
  count_at(counts[1], predicted + 1, weight);
  count_at(counts[2], place, weight * predicted.eq(wanted));
}

at::Tensor ClassCounts::matrix() const {
  TORCH_CHECK(options_.matrix, who(), ": this metric has no confusion matrix");
  at::Tensor result = read(0).slice(1, 1, classes_ + 1).slice(2, 1, classes_ + 1).clone();
  if (ignores_a_class()) result.select(1, *options_.ignore_index).zero_();
  return options_.task == Task::multilabel ? result : result[0];
}

ClassCounts::PerClass ClassCounts::per_class_of_matrix() const {
  const at::Tensor counts = matrix().to(at::kDouble);
  if (options_.task == Task::multiclass) return {counts.diagonal(), counts.sum(1), counts.sum(0), {}};
  const at::Tensor wanted = counts.select(-2, 1), predicted = counts.select(-1, 1);
  return {wanted.select(-1, 1), wanted.sum(-1), predicted.sum(-1), counts.sum({-2, -1})};
}

ClassCounts::PerClass ClassCounts::per_class_of_vectors() const {
  const at::Tensor counts = read(0).slice(1, 1, classes_ + 1).to(at::kDouble);
  if (ignores_a_class()) counts[0].select(0, *options_.ignore_index).zero_();
  return {counts[2], counts[0], counts[1], {}};
}

/// The counts on the border.
at::Tensor ClassCounts::count_invalid() const {
  const at::Tensor counts = options_.matrix ? read(0) : read(0).slice(0, 0, 2),
                   inside = counts.slice(1, 1, classes_ + 1);
  return counts.sum() - (options_.matrix ? inside.slice(2, 1, classes_ + 1) : inside).sum();
}

void ClassCounts::summarize() const {
  if (summarized_ == version()) return;
  per_class_ = options_.matrix ? per_class_of_matrix() : per_class_of_vectors();
  invalid_ = count_invalid();
  summarized_ = version();
}

const ClassCounts::PerClass& ClassCounts::per_class() const {
  summarize();
  return per_class_;
}

at::Tensor ClassCounts::invalid() const {
  summarize();
  return invalid_;
}

std::string ClassCounts::invalid_text() const {
  return c10::str("labels are outside [0, ", classes_, ")",
                  options_.ignore_index ? c10::str(" and are not ignore_index ", *options_.ignore_index)
                                        : " (ignore_index is not set)");
}

}  // namespace bellows::metrics
