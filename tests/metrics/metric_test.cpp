#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include "bellows/inspect/sync.h"
#include "support.h"

namespace bellows::metrics {

using inspect::SyncAction;
using inspect::SyncDetector;
using test::Batches;
using test::number;
using test::Sample;

namespace {

Batches make_batches(const std::function<std::pair<at::Tensor, at::Tensor>(int64_t)>& make) {
  Batches result;
  for (const int64_t n : {16, 7, 1, 32}) result.push_back(make(n));
  return result;
}

void add_classification(std::vector<Sample>& all, const std::string& task, const ClassificationOptions& o,
                        const Batches& batches) {
  all.push_back({task + " accuracy", Accuracy(o), batches});
  all.push_back({task + " F1", F1Score(o), batches});
  all.push_back({task + " IoU", JaccardIndex(o), batches});
  all.push_back({task + " confusion matrix", ConfusionMatrix(o, Normalize::target), batches});
}

void add_curves(std::vector<Sample>& all, const std::string& task, CurveOptions o, const Batches& batches) {
  all.push_back({task + " AUROC", AUROC(o), batches});
  all.push_back({task + " average precision", AveragePrecision(o), batches});
  o.thresholds = even_thresholds(11);
  all.push_back({task + " binned AUROC", AUROC(o), batches});
  all.push_back({task + " binned average precision", AveragePrecision(o), batches});
}

}  // namespace

std::vector<Sample> test::samples() {
  at::manual_seed(1);
  std::vector<Sample> all;
  const auto multiclass = make_batches([](int64_t n) {
    at::Tensor target = at::randint(6, {n}, at::kLong);
    return std::pair(at::randn({n, 6}), target.masked_fill_(at::rand({n}) < 0.2, -100));
  });
  const auto binary = make_batches([](int64_t n) { return std::pair(at::randn({n}), at::randint(2, {n}, at::kLong)); });
  const auto multilabel = make_batches([](int64_t n) {
    return std::pair(at::randn({n, 3}), at::randint(2, {n, 3}, at::kLong));
  });
  const ClassificationOptions six = {.num_classes = 6, .ignore_index = -100};
  add_classification(all, "multiclass", six, multiclass);
  all.push_back({"top-3 accuracy", Accuracy({.num_classes = 6, .top_k = 3, .ignore_index = -100}), multiclass});
  all.push_back({"accuracy of 300 classes", Accuracy({.num_classes = 300}), make_batches([](int64_t n) {
                   return std::pair(at::randn({n, 300}), at::randint(300, {n}, at::kLong));
                 })});
  add_classification(all, "binary", {.task = Task::binary, .scores = Scores::logits}, binary);
  add_classification(all, "multilabel", {.task = Task::multilabel, .num_classes = 3, .scores = Scores::logits},
                     multilabel);
  add_curves(all, "binary", {.scores = Scores::logits}, binary);
  add_curves(all, "multiclass",
             {.task = Task::multiclass, .num_classes = 6, .ignore_index = -100, .scores = Scores::logits}, multiclass);
  add_curves(all, "multilabel", {.task = Task::multilabel, .num_classes = 3, .scores = Scores::logits}, multilabel);
  const auto numbers = make_batches([](int64_t n) { return std::pair(at::randn({n}), at::randn({n})); });
  all.push_back({"MSE", MeanSquaredError(), numbers});
  all.push_back({"MAE", MeanAbsoluteError(), numbers});
  all.push_back({"R2", R2Score(), numbers});
  all.push_back({"mean", Mean(), make_batches([](int64_t n) { return std::pair(at::randn({n}), at::rand({n})); })});
  all.push_back({"perplexity", Perplexity({.ignore_index = -100}), multiclass});
  return all;
}

namespace {

at::Tensor result_of(Metric metric, const Batches& batches) {
  for (const auto& [preds, target] : batches) metric.update(preds, target);
  return metric.compute();
}

/// Counts are exact; sums of float64 may differ in the last bits.
bool same(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a.to(at::kDouble), b.to(at::kDouble), 1e-13, 1e-13, /*equal_nan=*/true);
}

TEST(Metric, OrderAndGroupingOfBatchesDoNotMatter) {
  for (const Sample& sample : test::samples()) {
    const at::Tensor expected = result_of(sample.metric, sample.batches);
    EXPECT_TRUE(at::isfinite(expected).all().item<bool>()) << sample.name;
    Batches reversed(sample.batches.rbegin(), sample.batches.rend());
    EXPECT_TRUE(same(result_of(sample.metric, reversed), expected)) << sample.name;
    std::vector<at::Tensor> preds, target;
    for (const auto& [p, t] : sample.batches) preds.push_back(p), target.push_back(t);
    EXPECT_TRUE(same(result_of(sample.metric, {{at::cat(preds), at::cat(target)}}), expected)) << sample.name;
  }
}

TEST(Metric, MergeEqualsOneMetricThatSawAll) {
  for (const Sample& sample : test::samples()) {
    Metric left = sample.metric, right = sample.metric, all = sample.metric;
    for (size_t i = 0; i < sample.batches.size(); ++i) {
      const auto& [preds, target] = sample.batches[i];
      (i < 2 ? left : right).update(preds, target);
      all.update(preds, target);
    }
    Metric empty = sample.metric;
    empty.merge(left);          // into nothing
    left.merge(sample.metric);  // of nothing
    left.merge(right);
    empty.merge(right);
    EXPECT_TRUE(same(left.compute(), all.compute())) << sample.name;
    EXPECT_TRUE(same(empty.compute(), all.compute())) << sample.name;
  }
}

TEST(Metric, StatesOfTwoRanksBecomeOne) {
  for (const Sample& sample : test::samples()) {
    Metric ranks[2] = {sample.metric, sample.metric}, all = sample.metric;
    for (size_t i = 0; i < sample.batches.size(); ++i) {
      const auto& [preds, target] = sample.batches[i];
      ranks[i % 2].update(preds, target);
      all.update(preds, target);
    }
    NamedTensors both = ranks[0].state();
    const NamedTensors other = ranks[1].state();
    for (size_t i = 0; i < both.size(); ++i) {
      at::Tensor& mine = both[i].second;
      mine = all.additive() ? mine + other[i].second : at::cat({mine, other[i].second});
    }
    Metric global = sample.metric;
    global.load_state(both);
    EXPECT_TRUE(same(global.compute(), all.compute())) << sample.name;
    global.update(sample.batches[0].first, sample.batches[0].second);
    all.update(sample.batches[0].first, sample.batches[0].second);
    EXPECT_TRUE(same(global.compute(), all.compute())) << sample.name << ": goes on";
  }
}

TEST(Metric, UpdateAndValueNeverWaitForTheDevice) {
  for (const Sample& sample : test::samples()) {
    Metric metric = sample.metric, other = sample.metric;
    const SyncDetector detector({.action = SyncAction::count});
    for (const auto& [preds, target] : sample.batches) {
      metric.update(preds, target);
      metric.value();
    }
    other.merge(metric);
    other.load_state(metric.state());
    metric.reset();
    EXPECT_EQ(detector.count(), 0) << sample.name << "\n" << detector.to_text();
    other.compute();
    EXPECT_LE(detector.count(), 1) << sample.name << "\n" << detector.to_text();
  }
}

/// Meta tensors have no data: an operator that needs some throws, and so does a mixture of devices. (`where`, `abs` and
/// `bucketize` have no kernel for them.)
TEST(Metric, UpdatesWithoutData) {
  int64_t tried = 0;
  for (const Sample& sample : test::samples()) {
    if (sample.name == "MAE" || sample.name.starts_with("top") || sample.name.find("binned") != std::string::npos)
      continue;
    Metric metric = sample.metric;
    for (const auto& [preds, target] : sample.batches) metric.update(preds.to(at::kMeta), target.to(at::kMeta));
    EXPECT_TRUE(metric.state().front().second.is_meta()) << sample.name;
    ++tried;
  }
  EXPECT_EQ(tried, 23);
}

TEST(Metric, ResetForgetsAndACopyCountsOnItsOwn) {
  for (const Sample& sample : test::samples()) {
    Metric metric = sample.metric;
    const at::Tensor expected = result_of(metric, sample.batches);
    metric.update(sample.batches[1].first, sample.batches[1].second);
    const Metric copy = metric;
    const at::Tensor before = copy.compute();
    metric.reset();
    for (const auto& [preds, target] : sample.batches) metric.update(preds, target);
    EXPECT_TRUE(same(metric.compute(), expected)) << sample.name;
    EXPECT_TRUE(same(copy.compute(), before)) << sample.name;
  }
}

TEST(Metric, BatchesFromInferenceModeAndWithGradients) {
  for (const Sample& sample : test::samples()) {
    const at::Tensor expected = result_of(sample.metric, sample.batches);
    Metric metric = sample.metric;
    for (size_t i = 0; i < sample.batches.size(); ++i) {
      auto [preds, target] = sample.batches[i];
      const c10::InferenceMode mode(i % 2 == 0);
      metric.update(i % 2 == 0 ? preds.clone() : preds.clone().requires_grad_(), target);
    }
    EXPECT_TRUE(same(metric.compute(), expected)) << sample.name;
    EXPECT_FALSE(metric.value().requires_grad()) << sample.name;
  }
}

TEST(Metric, KeepsNothingOfACallersTensor) {
  for (const Sample& sample : test::samples()) {
    const at::Tensor expected = result_of(sample.metric, sample.batches);
    Metric metric = sample.metric;
    for (const auto& [preds, target] : sample.batches) {
      at::Tensor p = preds.clone(), t = target.clone();
      metric.update(p, t);
      p.zero_(), t.zero_();
    }
    EXPECT_TRUE(same(metric.compute(), expected)) << sample.name;
  }
}

TEST(Metric, EmptyBatchesChangeNothing) {
  for (const Sample& sample : test::samples()) {
    Metric metric = sample.metric;
    const auto& [preds, target] = sample.batches[0];
    metric.update(preds.slice(0, 0, 0), target.slice(0, 0, 0));
    for (const auto& [p, t] : sample.batches) metric.update(p, t);
    EXPECT_TRUE(same(metric.compute(), result_of(sample.metric, sample.batches))) << sample.name;
  }
}

TEST(Metric, OfNothing) {
  const ClassificationOptions three = {.num_classes = 3};
  EXPECT_EQ(number(Accuracy(three).compute()), 0);
  EXPECT_EQ(number(F1Score(three).compute()), 0);
  EXPECT_EQ(number(JaccardIndex(three).compute()), 0);
  EXPECT_EQ(ConfusionMatrix(three).compute().sum().item<int64_t>(), 0);
  EXPECT_EQ(number(AUROC({}).compute()), 0);
  EXPECT_EQ(number(AveragePrecision({}).compute()), 0);
  EXPECT_TRUE(std::isnan(number(MeanSquaredError().compute())));
  EXPECT_TRUE(std::isnan(number(R2Score().compute())));
  EXPECT_TRUE(std::isnan(number(Mean().compute())));
  EXPECT_TRUE(std::isnan(number(Perplexity().compute())));
}

TEST(Mean, TakesNumbersTensorsAndWeights) {
  Mean mean;
  mean.update(2.0, 3);
  mean.update(at::scalar_tensor(4.0F));
  mean.update(at::tensor({1.0F, 3.0F}), 0.5);
  mean.update(at::tensor({10.0F, 20.0F}), at::tensor({0.0F, 1.0F}));
  EXPECT_DOUBLE_EQ(number(mean.compute()), (6 + 4 + 2 + 20) / (3 + 1 + 1 + 1.0));
}

MetricCollection small_collection() {
  const ClassificationOptions o = {.num_classes = 6, .average = Average::macro, .ignore_index = -100};
  return {{"accuracy", Accuracy(o)},
          {"precision", Precision(o)},
          {"recall", Recall(o)},
          {"f1", F1Score(o)},
          {"iou", JaccardIndex(o)},
          {"confusion", ConfusionMatrix(o)},
          {"top3", Accuracy({.num_classes = 6, .top_k = 3, .ignore_index = -100})}};
}

TEST(MetricCollection, GivesWhatEachMetricGives) {
  const Batches batches = test::samples()[0].batches;
  MetricCollection all = small_collection();
  for (const auto& [preds, target] : batches) all.update(preds, target);
  const MetricCollection fresh = small_collection();
  for (const auto& [name, result] : all.compute()) {
    EXPECT_TRUE(same(result, result_of(fresh[name], batches))) << name;
  }
  EXPECT_EQ(all.compute()[5].first, "confusion") << "the order of the constructor";
  const SyncDetector detector({.action = SyncAction::count});
  all.update(batches[0].first, batches[0].second);
  all.value();
  EXPECT_EQ(detector.count(), 0) << detector.to_text();
  all.compute();
  EXPECT_EQ(detector.count(), 2) << "one for the shared counts, one for top-3";
}

TEST(MetricCollection, SharesCounts) {
  MetricCollection all = small_collection();
  const NamedTensors state = all.state();
  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(state[0].first, "accuracy.counts");
  EXPECT_EQ(state[1].first, "top3.counts");
}

TEST(MetricCollection, CopiesMergesSavesAndLoads) {
  const Batches batches = test::samples()[0].batches;
  MetricCollection left = small_collection(), right = small_collection(), all = small_collection();
  for (size_t i = 0; i < batches.size(); ++i) {
    (i < 2 ? left : right).update(batches[i].first, batches[i].second);
    all.update(batches[i].first, batches[i].second);
  }
  MetricCollection merged = left;
  merged.merge(right);
  MetricCollection loaded = small_collection();
  loaded.load_state(merged.state());
  const NamedTensors expected = all.compute(), a = merged.compute(), b = loaded.compute();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(same(a[i].second, expected[i].second)) << expected[i].first;
    EXPECT_TRUE(same(b[i].second, expected[i].second)) << expected[i].first;
  }
  EXPECT_EQ(left["confusion"].value().sum().item<int64_t>(),
            all["confusion"].value().sum().item<int64_t>() - right["confusion"].value().sum().item<int64_t>())
      << "merging into a copy left the first as it was";
  all.reset();
  EXPECT_EQ(all["confusion"].value().sum().item<int64_t>(), 0);
}

/// What a user writes for a metric of their own.
class Extremes : public Totals {
 public:
  Extremes() : Totals("Extremes", "extremes", {{"above", {}, at::kLong}}) {}
  at::Tensor above() const { return read(0); }
  std::unique_ptr<Accumulator> clone() const override { return std::make_unique<Extremes>(*this); }

 protected:
  void add(const at::Tensor& preds, const at::Tensor& target) override { total(0).add_((preds > target).sum()); }
};

TEST(Metric, OfYourOwn) {
  Metric metric(std::make_unique<Extremes>(), [](const Extremes& seen) { return seen.above(); });
  MetricCollection all{{"above", metric}, {"mse", MeanSquaredError()}};
  all.update(at::tensor({1.0, 2.0, 3.0}), at::tensor({2.0, 1.0, 1.0}));
  EXPECT_EQ(all.compute()[0].second.item<int64_t>(), 2);
}

}  // namespace

}  // namespace bellows::metrics
