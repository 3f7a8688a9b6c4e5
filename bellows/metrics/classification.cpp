#include "bellows/metrics/classification.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <c10/util/Exception.h>

namespace bellows::metrics {

namespace {

using PerClass = ClassCounts::PerClass;

std::unique_ptr<ClassCounts> make_counts(const char* who, const ClassificationOptions& o, bool matrix = false) {
  return std::make_unique<ClassCounts>(who, ClassCounts::Options{.task = o.task,
                                                                 .num_classes = o.num_classes,
                                                                 .top_k = o.top_k,
                                                                 .threshold = o.threshold,
                                                                 .ignore_index = o.ignore_index,
                                                                 .scores = o.scores,
                                                                 .matrix = matrix});
}

at::Tensor divide(const at::Tensor& part, const at::Tensor& whole, double zero_division) {
  return part.div(whole).masked_fill_(whole.eq(0), zero_division);
}

PerClass sum_of(const PerClass& c) {
  return {c.hits.sum(), c.wanted.sum(), c.predicted.sum(), c.all.defined() ? c.all.sum() : c.all};
}

/// 1 for classes that occur; for multilabel, 1 for all labels.
at::Tensor macro_weights(const PerClass& c, const ClassificationOptions& o, bool top_k_counts) {
  if (o.task == Task::multilabel) return at::ones_like(c.wanted);
  return (top_k_counts && o.top_k > 1 ? c.wanted : c.wanted + c.predicted).ne(0).to(at::kDouble);
}

at::Tensor weighted_mean(const at::Tensor& score, const at::Tensor& weights) {
  return divide((weights * score).sum(), weights.sum(), 0);
}

/// A metric whose score is `formula(counts of one class)`.
/// Params: top_k_counts – with macro and top_k > 1, classes that were predicted but are not targets have weight 0
template <class Formula>
Metric averaged(const char* who, const ClassificationOptions& o, Average standard, bool top_k_counts, Formula formula) {
  const Average average = o.average.value_or(standard);
  return Metric(make_counts(who, o), [o, average, top_k_counts, formula](const ClassCounts& counts) {
    const PerClass& c = counts.per_class();
    if (o.task == Task::binary || average == Average::none) return formula(c);
    if (average == Average::micro) return formula(sum_of(c));
    return weighted_mean(formula(c), average == Average::weighted ? c.wanted : macro_weights(c, o, top_k_counts));
  });
}

at::Tensor normalized(const at::Tensor& counts, Normalize how) {
  if (how == Normalize::none) return counts;
  const at::Tensor matrix = counts.to(at::kDouble);
  if (how == Normalize::target) return divide(matrix, matrix.sum(-1, true), 0);
  if (how == Normalize::predicted) return divide(matrix, matrix.sum(-2, true), 0);
  return divide(matrix, matrix.sum({-2, -1}, true), 0);
}

}  // namespace

// tp + tn = all − wanted − predicted + 2 hits.
Accuracy::Accuracy(const ClassificationOptions& o)
    : Metric(averaged("Accuracy", o, Average::micro, true, [o](const PerClass& c) {
        if (o.task == Task::multiclass) return divide(c.hits, c.wanted, 0);
        return divide(c.all - c.wanted - c.predicted + c.hits * 2, c.all, 0);
      })) {}

Precision::Precision(const ClassificationOptions& o)
    : Metric(averaged("Precision", o, Average::macro, true,
                      [o](const PerClass& c) { return divide(c.hits, c.predicted, o.zero_division); })) {}

Recall::Recall(const ClassificationOptions& o)
    : Metric(averaged("Recall", o, Average::macro, true,
                      [o](const PerClass& c) { return divide(c.hits, c.wanted, o.zero_division); })) {}

// (1 + β²) tp + β² fn + fp = β² wanted + predicted.
FBetaScore::FBetaScore(const char* name, double beta, const ClassificationOptions& o)
    : Metric(averaged(name, o, Average::macro, false, [o, square = beta * beta](const PerClass& c) {
        return divide(c.hits * (1 + square), c.wanted * square + c.predicted, o.zero_division);
      })) {
  TORCH_CHECK_VALUE(beta > 0, name, ": expected beta above 0, got ", beta, ".");
}

// With macro and micro, predictions of an ignored class are not counted.
JaccardIndex::JaccardIndex(const ClassificationOptions& o)
    : Metric(make_counts("JaccardIndex", o), [o](const ClassCounts& counts) {
        PerClass c = counts.per_class();
        const auto score = [&](const PerClass& of) {
          return divide(of.hits, of.wanted + of.predicted - of.hits, o.zero_division);
        };
        const Average average = o.average.value_or(Average::macro);
        if (o.task == Task::binary || average == Average::none) return score(c);
        if (o.task == Task::multiclass && counts.ignores_a_class()) {
          c.predicted = c.predicted.clone();
          c.predicted.select(0, *o.ignore_index).zero_();
        }
        if (average == Average::micro) return score(sum_of(c));
        return weighted_mean(score(c), average == Average::weighted ? c.wanted : macro_weights(c, o, false));
      }) {}

ConfusionMatrix::ConfusionMatrix(const ClassificationOptions& o, Normalize normalize)
    : Metric(make_counts("ConfusionMatrix", o, true),
             [normalize](const ClassCounts& counts) { return normalized(counts.matrix(), normalize); }) {}

}  // namespace bellows::metrics
