#include "bellows/metrics/curves.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "bellows/metrics/score_bins.h"
#include "bellows/metrics/score_list.h"

namespace bellows::metrics {

namespace {

constexpr int64_t scores_at_a_time = 1 << 20;

// Suffixes: K curves (classes or labels), N samples, T thresholds.

/// One result per curve and its number of positives, both [K].
struct Areas {
  at::Tensor area, positives;
};

/// Data of several curves for the exact formulas, with samples in increasing order of scores. No shape depends on the
/// data: the samples that tie with sample i are those from tie_begin[i] to tie_end[i] - 1.
struct Ranked {
  at::Tensor positive_KN;                               // int64, 0 or 1
  at::Tensor positives_below_KN1, negatives_below_KN1;  // among the first i samples
  at::Tensor tie_begin_KN, tie_end_KN;
  at::Tensor positives_K, negatives_K;

  Ranked(const at::Tensor& scores_KN, const at::Tensor& positive, const at::Tensor& negative) {
    const auto [sorted, order] = at::sort(scores_KN, 1);
    const auto running = [&](const at::Tensor& t) {
      return at::constant_pad_nd(t.gather(1, order).cumsum(1, at::kLong), {1, 0});
    };
    positive_KN = positive.gather(1, order).to(at::kLong);
    positives_below_KN1 = running(positive);
    negatives_below_KN1 = running(negative);
    tie_begin_KN = at::searchsorted(sorted, sorted);
    tie_end_KN = at::searchsorted(sorted, sorted, false, /*right=*/true);
    positives_K = positives_below_KN1.select(1, -1);
    negatives_K = negatives_below_KN1.select(1, -1);
  }
};

at::Tensor divide_or(const at::Tensor& part, const at::Tensor& whole, double of_nothing) {
  return at::where(whole.ne(0), part.to(at::kDouble) / whole.to(at::kDouble), of_nothing);
}

/// Per positive sample, twice the number of correctly ordered pairs: all negatives below it and half of those that tie.
at::Tensor exact_auroc(const Ranked& r) {
  const at::Tensor twice =
      r.negatives_below_KN1.gather(1, r.tie_begin_KN) + r.negatives_below_KN1.gather(1, r.tie_end_KN);
  return divide_or((r.positive_KN * twice).sum(1), r.positives_K.to(at::kDouble) * r.negatives_K * 2, 0);
}

/// The mean precision at the thresholds of the positives.
at::Tensor exact_average_precision(const Ranked& r) {
  const at::Tensor hits = r.positives_K.unsqueeze(1) - r.positives_below_KN1.gather(1, r.tie_begin_KN);
  const at::Tensor misses = r.negatives_K.unsqueeze(1) - r.negatives_below_KN1.gather(1, r.tie_begin_KN);
  return divide_or((r.positive_KN * divide_or(hits, hits + misses, 0)).sum(1), r.positives_K, 0);
}

at::Tensor scores_of(const ScoreList& list, const CurveOptions& o) {
  const at::Tensor scores = list.scores();
  if (o.task != Task::multiclass || o.scores == Scores::probabilities || scores.size(0) == 0) return scores;
  const at::Tensor converted = to_probabilities(scores, o.task);
  return o.scores == Scores::logits ? converted : at::where(looks_like_logits(scores), converted, scores);
}

/// Processes a few curves at a time, so that memory does not grow with the number of classes.
template <class Area>
Areas exact_areas(const ScoreList& list, const CurveOptions& o, Area area) {
  at::Tensor scores_KN = scores_of(list, o).t(), labels_KN = list.labels().t();
  if (o.average == Average::micro) scores_KN = scores_KN.reshape({1, -1}), labels_KN = labels_KN.reshape({1, -1});
  const int64_t curves = scores_KN.size(0),
                step = std::max<int64_t>(1, scores_at_a_time / std::max<int64_t>(1, scores_KN.size(1)));
  std::vector<at::Tensor> areas, positives;
  for (int64_t begin = 0; begin < curves; begin += step) {
    const int64_t end = std::min(curves, begin + step);
    const bool multiclass = o.task == Task::multiclass;
    const at::Tensor labels = multiclass ? labels_KN : labels_KN.slice(0, begin, end);
    const at::Tensor wanted =
        multiclass ? at::arange(begin, end, labels.options()).unsqueeze(1) : at::ones({1, 1}, labels.options());
    const at::Tensor used = o.ignore_index ? labels.ne(*o.ignore_index) : at::ones_like(labels, at::kBool);
    const at::Tensor positive = labels.eq(wanted).bitwise_and_(used), negative = labels.ne(wanted).bitwise_and_(used);
    const Ranked ranked(scores_KN.slice(0, begin, end).contiguous(), positive, negative);
    areas.push_back(area(ranked));
    positives.push_back(ranked.positives_K);
  }
  return {at::cat(areas), at::cat(positives)};
}

/// Counts per threshold in float64: [K, T] for labels at or above it, [K] for all labels.
struct Binned {
  at::Tensor tp_KT, fp_KT, positives_K, negatives_K;

  Binned(const ScoreBins& bins, Average average) {
    at::Tensor reached = bins.reached(), all = bins.all();
    if (average == Average::micro) reached = reached.sum(1, true), all = all.sum(1, true);
    reached = reached.to(at::kDouble);
    all = all.to(at::kDouble);
    fp_KT = reached[0], tp_KT = reached[1], negatives_K = all[0], positives_K = all[1];
  }
};

/// Trapezoids between the points of the thresholds. Nothing is added before the first and after the last.
at::Tensor binned_auroc(const Binned& b) {
  const at::Tensor tpr = divide_or(b.tp_KT, b.positives_K.unsqueeze(1), 0);
  const at::Tensor fpr = divide_or(b.fp_KT, b.negatives_K.unsqueeze(1), 0);
  const int64_t last = tpr.size(1) - 1;
  const at::Tensor height = tpr.narrow(1, 0, last) + tpr.narrow(1, 1, last);
  return (height * (fpr.narrow(1, 0, last) - fpr.narrow(1, 1, last))).sum(1) / 2;
}

at::Tensor binned_average_precision(const Binned& b) {
  const at::Tensor precision = divide_or(b.tp_KT, b.tp_KT + b.fp_KT, 0);
  const at::Tensor recall = divide_or(b.tp_KT, b.positives_K.unsqueeze(1), 0);
  const at::Tensor next = at::constant_pad_nd(recall.slice(1, 1), {0, 1});
  return ((recall - next) * precision).sum(1);
}

/// Average over the classes that have a result.
at::Tensor averaged(const Areas& areas, const CurveOptions& o) {
  if (o.task == Task::binary || o.average == Average::micro) return areas.area[0];
  if (o.average == Average::none) return areas.area;
  const at::Tensor known = ~at::isnan(areas.area);
  const at::Tensor weights = o.average == Average::weighted ? areas.positives * known : known;
  const at::Tensor sum = weights.sum().to(at::kDouble);
  const at::Tensor mean = (areas.area.masked_fill(~known, 0) * weights).sum() / sum;
  return o.average == Average::weighted ? mean.masked_fill(sum.eq(0), 0) : mean;
}

template <class Exact, class Binning>
Metric curve_metric(const char* who, CurveOptions o, Exact exact, Binning binned) {
  TORCH_CHECK_VALUE(o.average != Average::micro || o.task != Task::multiclass, who,
                    ": expected average none, macro or weighted for a multiclass task, got micro.");
  if (o.task == Task::binary) o.average = Average::none;
  if (o.thresholds.empty()) {
    return Metric(
        std::make_unique<ScoreList>(
            who, ScoreList::Options{.task = o.task, .num_classes = o.num_classes, .ignore_index = o.ignore_index}),
        [o, exact](const ScoreList& list) { return averaged(exact_areas(list, o, exact), o); });
  }
  return Metric(std::make_unique<ScoreBins>(who, ScoreBins::Options{.task = o.task,
                                                                    .num_classes = o.num_classes,
                                                                    .thresholds = o.thresholds,
                                                                    .ignore_index = o.ignore_index,
                                                                    .scores = o.scores}),
                [o, binned](const ScoreBins& bins) {
                  const Binned counts(bins, o.average);
                  return averaged({binned(counts), counts.positives_K}, o);
                });
}

}  // namespace

std::vector<double> even_thresholds(int64_t count) {
  TORCH_CHECK_VALUE(count >= 2, "even_thresholds: expected at least 2, got ", count, ".");
  const at::Tensor even = at::linspace(0, 1, count, at::kFloat);
  const float* first = even.const_data_ptr<float>();
  return {first, first + count};
}

AUROC::AUROC(const CurveOptions& options) : Metric(curve_metric("AUROC", options, exact_auroc, binned_auroc)) {}

// In a multiclass task, a class without positives has no average precision.
AveragePrecision::AveragePrecision(const CurveOptions& options)
    : Metric(curve_metric(
          "AveragePrecision", options,
          [multiclass = options.task == Task::multiclass](const Ranked& r) {
            const at::Tensor area = exact_average_precision(r);
            return multiclass ? area.masked_fill(r.positives_K.eq(0), std::numeric_limits<double>::quiet_NaN()) : area;
          },
          binned_average_precision)) {}

}  // namespace bellows::metrics
