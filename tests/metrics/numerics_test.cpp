#include <gtest/gtest.h>

#include <cmath>

#include "support.h"

namespace bellows::metrics {

namespace {

using test::classes;
using test::number;

/// float32 counters stand still at 2^24, and an int32 one overflows at 2^31.
TEST(MetricNumerics, CountsAreExactOverLongRuns) {
  Accuracy accuracy({.num_classes = 2});
  const int64_t many = (int64_t{1} << 40) + 1;
  NamedTensors state = accuracy.state();
  state[0].second[0][1][1] = many;  // target 0, predicted 0; the matrix has a border
  accuracy.load_state(state);
  accuracy.update(classes({1, 0}), classes({0, 1}));
  EXPECT_EQ(accuracy.state()[0].second.sum().item<int64_t>(), many + 2);
  EXPECT_EQ(number(accuracy.compute()), static_cast<double>(many) / static_cast<double>(many + 2));
}

TEST(MetricNumerics, MeanOfManySmallNumbers) {
  Mean mean;
  const at::Tensor third = at::scalar_tensor(0.1F);
  for (int i = 0; i < 20000; ++i) mean.update(third);
  EXPECT_NEAR(number(mean.compute()), static_cast<double>(0.1F), 1e-15);
}

TEST(MetricNumerics, R2OfTargetsFarFromZero) {
  at::manual_seed(2);
  const at::Tensor target = at::randn({1000}, at::kDouble), preds = target + at::randn({1000}, at::kDouble) / 3;
  R2Score near, far;
  near.update(preds, target);
  far.update(preds + 1e5, target + 1e5);
  EXPECT_NEAR(number(far.compute()), number(near.compute()), 1e-5) << "1e-16 · 1e10";
}

TEST(MetricNumerics, LowPrecisionScores) {
  at::manual_seed(3);
  const at::Tensor target = at::randint(5, {64}, at::kLong);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
    const at::Tensor scores = at::randn({64, 5}).to(dtype), exact = scores.to(at::kFloat);
    const ClassificationOptions top = {.num_classes = 5, .top_k = 2};
    const CurveOptions curve = {.task = Task::multiclass, .num_classes = 5};
    const std::vector<std::pair<Metric, Metric>> pairs = {{Accuracy({.num_classes = 5}), Accuracy({.num_classes = 5})},
                                                          {Accuracy(top), Accuracy(top)},
                                                          {AUROC(curve), AUROC(curve)},
                                                          {Perplexity(), Perplexity()}};
    for (auto [low, high] : pairs) {
      low.update(scores, target);
      high.update(exact, target);
      EXPECT_NEAR(number(low.compute()), number(high.compute()), 1e-6) << dtype;
    }
    Accuracy binary({.task = Task::binary});
    binary.update(scores.select(1, 0), target > 2);
    EXPECT_EQ(number(binary.compute()),
              ((exact.select(1, 0) > 0) == (target > 2)).to(at::kDouble).mean().item<double>());
  }
}

TEST(MetricNumerics, LabelsOfAnyIntegerDtype) {
  const at::Tensor scores = at::rand({8, 200}), target = at::arange(192, 200);
  Accuracy expected({.num_classes = 200});
  expected.update(scores, target);
  for (const at::ScalarType dtype : {at::kByte, at::kShort, at::kInt}) {
    Accuracy accuracy({.num_classes = 200});
    accuracy.update(scores, target.to(dtype));
    EXPECT_EQ(number(accuracy.compute()), number(expected.compute())) << dtype;
    accuracy.update(target.to(dtype), target.to(dtype));
    EXPECT_EQ(number(accuracy.compute()), (number(expected.compute()) + 1) / 2) << dtype;
  }
}

TEST(MetricNumerics, AVocabularyTakesLittleMemory) {
  Accuracy tokens({.num_classes = 50000, .ignore_index = -100});
  tokens.update(at::rand({4, 50000}), classes({1, 2, 3, -100}));
  EXPECT_EQ(tokens.state()[0].second.nbytes(), 3u * 50002 * 8);
  EXPECT_NO_THROW(tokens.compute());
}

TEST(MetricNumerics, PerplexityOfFarLogits) {
  Perplexity perplexity;
  perplexity.update(at::tensor({0.0F, 200.0F}).view({1, 1, 2}), classes({0}).view({1, 1}));
  EXPECT_NEAR(std::log(number(perplexity.compute())), 200, 1e-9) << "a probability in float32 would be 0";
}

TEST(MetricNumerics, IgnoredTokensMayBeAnything) {
  Perplexity perplexity({.ignore_index = -100});
  perplexity.update(at::zeros({1, 3, 4}), classes({1, -100, 2}).view({1, 3}));
  EXPECT_NEAR(number(perplexity.compute()), 4, 1e-6) << "log-softmax in float32";
}

}  // namespace

}  // namespace bellows::metrics
