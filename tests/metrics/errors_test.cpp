#include <gmock/gmock.h>

#include <cmath>

#include "support.h"

namespace bellows::metrics {

namespace {

using test::classes;
using test::number;
using testing::AllOf;
using testing::HasSubstr;

/// The message of the ValueError that `call` throws.
template <class F>
std::string message_of(F call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

const at::Tensor scores_3 = at::tensor({0.1, 0.7, 0.2, 0.3, 0.3, 0.4, 0.9, 0.0, 0.1}, at::kFloat).view({3, 3});

TEST(MetricErrors, LabelsOutOfRangeAreReportedByCompute) {
  for (const int64_t num_classes : {3, 300}) {
    for (const int64_t wrong : {int64_t{-1}, num_classes, int64_t{100000}, int64_t{-100000}}) {
      const at::Tensor scores = num_classes == 3 ? scores_3 : at::rand({3, 300});
      Accuracy accuracy({.num_classes = num_classes});
      accuracy.update(scores, classes({1, wrong, 0}));
      EXPECT_THAT(message_of([&] { accuracy.compute(); }),
                  AllOf(HasSubstr("Accuracy.compute: 1 labels are outside [0, " + std::to_string(num_classes) + ")"),
                        HasSubstr("ignore_index is not set")));
      EXPECT_TRUE(std::isnan(number(accuracy.value()))) << "a wrong value never passes unseen";
      accuracy.reset();
      accuracy.update(scores, classes({1, 1, 0}));
      EXPECT_NO_THROW(accuracy.compute());
    }
  }
}

/// Counts scores: a wrong label spoils one of each class.
bool binned_curve(const Metric& metric) {
  return metric.state()[0].second.dim() == 1;
}

TEST(MetricErrors, EveryLabelMetricFindsThem) {
  const ClassificationOptions o = {.num_classes = 3, .ignore_index = -100};
  std::vector<Metric> all = {Precision(o), Recall(o), F1Score(o), JaccardIndex(o), ConfusionMatrix(o), Perplexity()};
  for (const bool binned : {false, true}) {
    CurveOptions curve = {.task = Task::multiclass, .num_classes = 3, .ignore_index = -100};
    if (binned) curve.thresholds = even_thresholds(5);
    all.push_back(AUROC(curve));
    all.push_back(AveragePrecision(curve));
  }
  for (Metric& metric : all) {
    metric.update(scores_3, classes({0, 3, 1}));
    EXPECT_THAT(message_of([&] { metric.compute(); }),
                HasSubstr(binned_curve(metric) ? ".compute: 3 scores" : ".compute: 1 "));
    const at::Tensor value = metric.value().to(at::kDouble);
    EXPECT_TRUE((value.isnan() | (value == -1)).all().item<bool>());
  }
}

TEST(MetricErrors, PredictedLabelsOutOfRangeAreReported) {
  for (const int64_t num_classes : {3, 300}) {
    Accuracy accuracy({.num_classes = num_classes});
    accuracy.update(classes({0, 300, -1}), classes({0, 1, 1}));
    EXPECT_THAT(message_of([&] { accuracy.compute(); }), HasSubstr("2 labels are outside"));
  }
  Accuracy binary({.task = Task::binary});
  binary.update(classes({0, 2}), classes({0, 1}));
  EXPECT_THAT(message_of([&] { binary.compute(); }), HasSubstr("1 labels are outside [0, 2)"));
}

TEST(MetricErrors, NanScoresAreReported) {
  for (const bool binned : {false, true}) {
    AUROC auroc({.thresholds = binned ? even_thresholds(5) : std::vector<double>{}});
    auroc.update(at::tensor({0.5F, NAN, 0.25F}), classes({0, 1, 1}));
    EXPECT_THAT(message_of([&] { auroc.compute(); }), HasSubstr("AUROC.compute: 1 scores are NaN")) << binned;
    EXPECT_TRUE(std::isnan(number(auroc.value())));
  }
}

TEST(MetricErrors, CollectionNamesTheMetric) {
  MetricCollection all{{"accuracy", Accuracy({.num_classes = 3})}, {"f1", F1Score({.num_classes = 3})}};
  all.update(scores_3, classes({0, 7, 1}));
  EXPECT_THAT(message_of([&] { all.compute(); }), HasSubstr("Accuracy.compute: 1 labels"));
}

TEST(MetricErrors, ShapesAndDtypes) {
  Accuracy accuracy({.num_classes = 3});
  EXPECT_THAT(message_of([&] {
                accuracy.update(at::rand({4, 5}), classes({0, 1, 2, 0}));
              }),
              AllOf(HasSubstr("Accuracy.update (multiclass): expected preds [N, 3, …] (scores)"),
                    HasSubstr("got preds [4, 5] of Float and labels [4]")));
  EXPECT_THAT(message_of([&] { accuracy.update(at::rand({4, 3}), classes({0, 1})); }), HasSubstr("labels [2]"));
  EXPECT_THAT(message_of([&] { accuracy.update(at::rand({3}), classes({0, 1, 2})); }), HasSubstr("got preds [3]"));
  EXPECT_THAT(message_of([&] {
                accuracy.update(at::rand({2, 3}), at::rand({2}));
              }),
              HasSubstr("expected integer labels, got preds of Float and labels of Float"));
  EXPECT_THAT(message_of([&] { accuracy.update({}, classes({0})); }), HasSubstr("undefined"));
  EXPECT_THAT(message_of([&] { accuracy.update(at::rand({2, 3}), {}); }), HasSubstr("undefined"));
  F1Score labels({.task = Task::multilabel, .num_classes = 3});
  EXPECT_THAT(message_of([&] {
                labels.update(at::rand({2, 4}), at::zeros({2, 4}, at::kLong));
              }),
              HasSubstr("F1Score.update (multilabel): expected preds [N, 3, …] and labels of the same shape"));
  EXPECT_EQ(number(accuracy.compute()), 0) << "nothing was counted";
}

TEST(MetricErrors, ShapesOfCurvesAndNumbers) {
  AUROC auroc({});
  EXPECT_THAT(message_of([&] {
                auroc.update(classes({1, 0}), classes({1, 0}));
              }),
              HasSubstr("AUROC.update: expected floating-point scores and integer labels, got Long and Long"));
  EXPECT_THAT(message_of([&] { auroc.update(at::rand({2, 2}), classes({1, 0})); }), HasSubstr("got [2, 2] and [2]"));
  auroc.update(at::rand({2}), classes({1, 0}));
  EXPECT_THAT(message_of([&] {
                auroc.update(at::rand({2}, at::kDouble), classes({1, 0}));
              }),
              HasSubstr("expected scores of Float, as in earlier batches, got Double"));
  MeanSquaredError mse;
  EXPECT_THAT(message_of([&] {
                mse.update(at::rand({2, 1}), at::rand({2}));
              }),
              HasSubstr("got [2, 1] of Float and [2]"));
  R2Score r2({.num_outputs = 3});
  EXPECT_THAT(message_of([&] { r2.update(at::rand({3}), at::rand({3})); }), HasSubstr("expected [N, 3]"));
  Perplexity perplexity;
  EXPECT_THAT(message_of([&] {
                perplexity.update(at::rand({2, 3, 4}), at::zeros({2, 4}, at::kLong));
              }),
              HasSubstr("expected logits [B, T, V] and integer targets [B, T], got [2, 3, 4]"));
}

TEST(MetricErrors, Options) {
  EXPECT_THAT(message_of([] { Accuracy({}); }), HasSubstr("Accuracy: expected num_classes of at least 2"));
  EXPECT_THAT(message_of([] { Accuracy({.num_classes = 3, .top_k = 4}); }), HasSubstr("expected top_k from 1 to"));
  EXPECT_THAT(message_of([] { Accuracy({.task = Task::binary, .top_k = 2}); }), HasSubstr("top_k"));
  EXPECT_THAT(message_of([] { F1Score({.task = Task::binary, .threshold = 1.5}); }), HasSubstr("threshold in [0, 1]"));
  EXPECT_THAT(message_of([] { FBetaScore(0, {.num_classes = 3}); }), HasSubstr("beta above 0"));
  EXPECT_THAT(message_of([] { FBetaScore(NAN, {.num_classes = 3}); }), HasSubstr("beta above 0"));
  EXPECT_THAT(message_of([] { AUROC({.task = Task::multilabel}); }), HasSubstr("num_classes of at least 1"));
  EXPECT_THAT(message_of([] { AUROC({.task = Task::multiclass, .num_classes = 3, .average = Average::micro}); }),
              HasSubstr("got micro"));
  EXPECT_THAT(message_of([] { AUROC({.thresholds = {0.5, 0.25}}); }), HasSubstr("increasing thresholds in [0, 1]"));
  EXPECT_THAT(message_of([] { AUROC({.thresholds = {0.5}}); }), HasSubstr("at least two"));
  EXPECT_THAT(message_of([] { AUROC({.thresholds = {0.5, NAN}}); }), HasSubstr("increasing"));
  EXPECT_THAT(message_of([] { even_thresholds(1); }), HasSubstr("expected at least 2"));
  EXPECT_THAT(message_of([] { R2Score({.num_outputs = 0}); }), HasSubstr("num_outputs of at least 1"));
  EXPECT_THAT(message_of([] { MeanSquaredError({.multioutput = MultiOutput::variance_weighted}); }),
              HasSubstr("Only R2Score supports variance_weighted"));
  Accuracy top({.num_classes = 3, .top_k = 2});
  EXPECT_THAT(message_of([&] { top.update(classes({0}), classes({0})); }), HasSubstr("top_k = 2 needs scores"));
}

TEST(MetricErrors, MergeAndState) {
  Metric three = Accuracy({.num_classes = 3}), four = Accuracy({.num_classes = 4}), mse = MeanSquaredError();
  EXPECT_THAT(message_of([&] { three.merge(four); }),
              AllOf(HasSubstr("Accuracy.merge: expected a metric with the same options"), HasSubstr("num_classes=4")));
  EXPECT_THAT(message_of([&] { three.merge(mse); }), HasSubstr("errors("));
  EXPECT_THAT(message_of([&] { three.load_state(four.state()); }), HasSubstr("\"counts\" has shape [1, 6, 6]"));
  EXPECT_THAT(message_of([&] { three.load_state(mse.state()); }), HasSubstr("expected 1 tensors, got 2"));
  Metric auroc = AUROC({});
  EXPECT_THAT(message_of([&] { auroc.load_state(mse.state()); }), HasSubstr("expected \"scores\" and \"labels\""));
  EXPECT_THAT(message_of([&] {
                auroc.load_state({{"scores", at::rand({3, 1})}, {"labels", at::zeros({2, 1}, at::kLong)}});
              }),
              HasSubstr("3 scores of Float and 2 labels"));
  Metric close = AUROC({.thresholds = {0.5, 0.75}}), closer = AUROC({.thresholds = {0.5, 0.75 + 1e-9}});
  EXPECT_THAT(message_of([&] { close.merge(closer); }), HasSubstr("same options")) << "keys hold every digit";
}

TEST(MetricErrors, Collections) {
  const Accuracy accuracy({.num_classes = 3});
  EXPECT_THAT(message_of([&] {
                MetricCollection({{"a", accuracy}, {"a", accuracy}});
              }),
              HasSubstr("\"a\" occurs twice"));
  MetricCollection one{{"accuracy", accuracy}}, two{{"accuracy", F1Score({.num_classes = 4})}}, other{{"f1", accuracy}};
  EXPECT_THAT(message_of([&] { one["acuracy"]; }), HasSubstr("Did you mean \"accuracy\"?"));
  EXPECT_THAT(message_of([&] { one.merge(other); }), HasSubstr("same names"));
  EXPECT_THAT(message_of([&] { one.merge(two); }), HasSubstr("\"accuracy\" is counts("));
  EXPECT_THAT(message_of([&] { one.load_state(other.state()); }), HasSubstr("expected 1 tensors, got 0"));
  NamedTensors state = one.state();
  state.emplace_back("rest.counts", at::zeros({1}));
  EXPECT_THAT(message_of([&] { one.load_state(state); }), HasSubstr("1 tensors belong to no metric"));
}

TEST(MetricErrors, Devices) {
  Accuracy accuracy({.num_classes = 3});
  EXPECT_THAT(message_of([&] {
                accuracy.update(scores_3.to(at::kMeta), classes({0, 1, 2}));
              }),
              HasSubstr("expected both tensors on the same device, got meta and cpu"));
  accuracy.update(scores_3.to(at::kMeta), classes({0, 1, 2}).to(at::kMeta));
  EXPECT_THAT(message_of([&] {
                accuracy.update(scores_3, classes({0, 1, 2}));
              }),
              HasSubstr("the earlier batches are on meta, but this batch is on cpu"));
}

}  // namespace

}  // namespace bellows::metrics
