#include "bellows/parallel/reduce_metrics.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/metrics/classification.h"
#include "bellows/metrics/curves.h"
#include "tests/parallel/ranks.h"
#include "tests/support/errors.h"

namespace bellows::parallel::testing {
namespace {

using metrics::MetricCollection;

MetricCollection counted() {
  return {{"accuracy", metrics::Accuracy({.num_classes = 5})},
          {"f1", metrics::F1Score({.num_classes = 5, .average = metrics::Average::none})},
          {"confusion", metrics::ConfusionMatrix({.num_classes = 5})}};
}

/// Two batches for all ranks: of three ranks one takes none.
struct Batches {
  std::vector<at::Tensor> scores, labels;
  Batches() {
    torch::manual_seed(3);
    for (int64_t i = 0; i < 2; ++i) {
      scores.push_back(torch::rand({6 + i, 5}));
      labels.push_back(torch::randint(5, {6 + i}));
    }
  }
  void update(MetricCollection& metrics, size_t first, size_t step) const {
    for (size_t i = first; i < scores.size(); i += step) metrics.update(scores[i], labels[i]);
  }
};

void expect_equal(const NamedTensors& found, const NamedTensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].first, expected[i].first);
    EXPECT_TRUE(at::equal(found[i].second, expected[i].second)) << found[i].first << "\n" << found[i].second;
  }
}

TEST(ReduceMetrics, CountsOfAllRanksTakeOneCollective) {
  const Batches batches;
  MetricCollection whole = counted();
  batches.update(whole, 0, 1);
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [&](const comm::Group& group) {
      MetricCollection own = counted();
      batches.update(own, static_cast<size_t>(group.rank()), static_cast<size_t>(world));
      const NamedTensors before = own.compute();
      const MetricCollection all = reduce_metrics(own, group);
      expect_equal(all.compute(), whole.compute());
      expect_equal(own.compute(), before);
      int64_t calls = 0;
      for (const auto& [name, traffic] : comm::traffic(group)) calls += traffic.calls;
      EXPECT_EQ(calls, world == 1 ? 0 : 1);
    });
  }
}

TEST(ReduceMetrics, ListsOfScoresMayDifferInLength) {
  const auto listed = [] {
    return MetricCollection{{"auroc", metrics::AUROC({.task = metrics::Task::multiclass, .num_classes = 5})},
                            {"accuracy", metrics::Accuracy({.num_classes = 5})}};
  };
  Batches batches;
  for (at::Tensor& scores : batches.scores) scores = scores.to(at::kDouble).softmax(1);
  MetricCollection whole = listed();
  batches.update(whole, 0, 1);
  run_ranks(3, [&](const comm::Group& group) {  // the third rank has seen nothing, and so no dtype either
    MetricCollection own = listed();
    batches.update(own, static_cast<size_t>(group.rank()), 3);
    expect_equal(reduce_metrics(own, group).compute(), whole.compute());
  });
}

TEST(ReduceMetrics, OneMetricAlone) {
  run_ranks(2, [](const comm::Group& group) {
    metrics::Accuracy own({.num_classes = 2});
    own.update(torch::tensor({group.rank(), 1}), torch::tensor({1, 1}));
    EXPECT_EQ(reduce_metrics(own, group).compute().item<double>(), 0.75);
  });
}

TEST(ReduceMetrics, SaysWhichMetricDiffers) {
  run_ranks(2, [](const comm::Group& group) {
    const MetricCollection own{{"accuracy", metrics::Accuracy({.num_classes = 4, .top_k = 1 + group.rank()})}};
    const std::string message = message_of([&] { reduce_metrics(own, group); });
    EXPECT_THAT(message, ::testing::HasSubstr("the ranks hold different metrics"));
    EXPECT_THAT(message, ::testing::HasSubstr("rank 1")) << message;
  });
}

}  // namespace
}  // namespace bellows::parallel::testing
