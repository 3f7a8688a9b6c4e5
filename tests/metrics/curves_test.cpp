#include <gtest/gtest.h>

#include <cmath>

#include "support.h"

namespace bellows::metrics {

namespace {

using test::classes;
using test::number;

/// The definition: over all pairs of a positive and a negative.
double auroc_of_pairs(const at::Tensor& scores, const at::Tensor& labels) {
  const at::Tensor positive = scores.masked_select(labels == 1).unsqueeze(1),
                   negative = scores.masked_select(labels == 0);
  return ((positive > negative).to(at::kDouble) + (positive == negative).to(at::kDouble) / 2).mean().item<double>();
}

/// The definition: precision at each positive's own threshold.
double average_precision_of_thresholds(const at::Tensor& scores, const at::Tensor& labels) {
  const at::Tensor used = scores.masked_select(labels >= 0), thresholds = scores.masked_select(labels == 1);
  const at::Tensor hits = (thresholds.unsqueeze(0) >= thresholds.unsqueeze(1)).sum(1);
  return (hits.to(at::kDouble) / (used.unsqueeze(0) >= thresholds.unsqueeze(1)).sum(1)).mean().item<double>();
}

TEST(Curves, EqualTheirDefinitions) {
  at::manual_seed(3);
  for (const double steps : {2.0, 8.0, 1e6}) {  // many ties to none
    for (const int64_t n : {5, 64, 999}) {
      const at::Tensor scores = at::round(at::randn({n}) * steps) / steps;
      at::Tensor labels = at::randint(2, {n}, at::kLong);
      labels.slice(0, 0, 2).copy_(classes({0, 1}));
      labels.slice(0, 2).masked_fill_(at::rand({n - 2}) < 0.1, -1);
      AUROC auroc({.ignore_index = -1});
      AveragePrecision precision({.ignore_index = -1});
      auroc.update(scores, labels);
      precision.update(scores, labels);
      EXPECT_NEAR(number(auroc.compute()), auroc_of_pairs(scores, labels), 1e-14) << steps << " " << n;
      EXPECT_NEAR(number(precision.compute()), average_precision_of_thresholds(scores, labels), 1e-14)
          << steps << " " << n;
    }
  }
}

TEST(Curves, LogitsThatSaturateASigmoidKeepTheirRanks) {
  AUROC auroc({});
  auroc.update(at::tensor({100.0F, 101.0F, 102.0F, 103.0F}), classes({0, 0, 1, 1}));
  EXPECT_EQ(number(auroc.compute()), 1) << "sigmoid makes 1 of all four";
}

TEST(Curves, InfiniteScoresAreScores) {
  AUROC auroc({});
  auroc.update(at::tensor({-INFINITY, 0.0F, 1.0F, INFINITY}), classes({0, 0, 1, 1}));
  EXPECT_EQ(number(auroc.compute()), 1);
}

TEST(Curves, ManyBinsApproachTheExactResult) {
  at::manual_seed(4);
  const at::Tensor labels = at::randint(2, {2000}, at::kLong), scores = at::sigmoid(at::randn({2000}) + labels);
  AUROC exact({}), binned({.thresholds = even_thresholds(4001)});
  exact.update(scores, labels);
  binned.update(scores, labels);
  EXPECT_NEAR(number(binned.compute()), number(exact.compute()), 1e-4);
}

TEST(Curves, ManyColumnsAreTakenAFewAtATime) {
  at::manual_seed(5);
  constexpr int64_t labels_count = 3, n = 1 << 19;  // 1 M scores at a time: two labels
  const at::Tensor labels = at::randint(2, {n, labels_count}, at::kLong);
  const at::Tensor scores = at::randint(1000, {n, labels_count}, at::kFloat) + 100 * labels;
  CurveOptions all = {.task = Task::multilabel, .num_classes = labels_count, .average = Average::none};
  AUROC auroc(all), last({});
  auroc.update(scores, labels);
  last.update(scores.select(1, 2), labels.select(1, 2));
  const at::Tensor areas = auroc.compute();
  EXPECT_EQ(areas.numel(), labels_count);
  EXPECT_EQ(areas[2].item<double>(), number(last.compute()));
}

TEST(Curves, EvenThresholdsAreThoseOfLinspace) {
  for (const int64_t count : {2, 3, 5, 10, 20, 100, 101, 200, 1000}) {
    EXPECT_TRUE(at::equal(at::tensor(even_thresholds(count), at::kFloat), at::linspace(0, 1, count, at::kFloat)))
        << count;
  }
}

/// A batch of logits between 0 and 1 looks like probabilities: naming the kind makes batches not matter.
TEST(Curves, TheKindOfScoresCanBeNamed) {
  const at::Tensor scores = at::tensor({0.1F, 0.4F, 3.0F, -2.0F}), labels = classes({0, 1, 1, 0});
  Accuracy named({.task = Task::binary, .scores = Scores::logits}), detected({.task = Task::binary});
  for (const int64_t i : {0, 2}) {
    named.update(scores.narrow(0, i, 2), labels.narrow(0, i, 2));
    detected.update(scores.narrow(0, i, 2), labels.narrow(0, i, 2));
  }
  EXPECT_EQ(number(named.compute()), 0.75) << "0.1 is a positive logit";
  EXPECT_EQ(number(detected.compute()), 0.75) << "0.4 is a low probability";
  Accuracy probabilities({.task = Task::binary, .threshold = 0.3, .scores = Scores::probabilities});
  probabilities.update(scores.narrow(0, 0, 2), labels.narrow(0, 0, 2));
  EXPECT_EQ(number(probabilities.compute()), 1);
  AUROC binned({.thresholds = {0.25, 0.51, 0.75}, .scores = Scores::logits});
  binned.update(scores, labels);
  EXPECT_NEAR(number(binned.compute()), 0.5 * (1 + 0.5) * 0.5, 1e-12) << "three points of the curve";
}

}  // namespace

}  // namespace bellows::metrics
