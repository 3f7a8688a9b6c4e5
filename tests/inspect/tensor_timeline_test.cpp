#include "bellows/inspect/tensor_recorder.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "bellows/inspect/memory.h"
#include "bellows/inspect/trace.h"

namespace bellows::inspect {
namespace {

constexpr int64_t batch_rows = 256, layer_width = 192;

/// Three layers, each a product and a ReLU: the example of activations A1, A2, A3 and gradients G3, G2, G1.
struct ThreeLayers {
  ThreeLayers() {
    torch::manual_seed(1);
    for (int i = 0; i < 3; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(layer_width, layer_width).bias(false)));
      layers->push_back(torch::nn::ReLU());
    }
    input = torch::randn({batch_rows, layer_width});
    optimizer = std::make_unique<torch::optim::SGD>(layers->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  void step() {
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const TraceScope forward("forward");
      at::Tensor x;
      {
        const TraceScope load("load");
        x = input.clone();
      }
      loss = layers->forward(x).square().mean();
    }
    {
      const TraceScope backward("backward");
      loss.backward();
    }
    const TraceScope update("optimizer");
    optimizer->step();
  }
  torch::nn::Sequential layers;
  at::Tensor input;
  std::unique_ptr<torch::optim::SGD> optimizer;
};

TensorTimeline recorded(ThreeLayers& net) {
  TensorRecorder recorder(Model::of(net.layers));
  net.step();
  recorder.begin();
  net.step();
  return recorder.end();
}

std::vector<TensorLife> select(const TensorTimeline& timeline, TensorKind kind, const std::string& op = "") {
  std::vector<TensorLife> result;
  for (const TensorLife& tensor : timeline.tensors) {
    const bool made = tensor.born >= 0 && tensor.bytes >= batch_rows * layer_width;
    if (made && tensor.kind == kind && (op.empty() || tensor.op == op)) result.push_back(tensor);
  }
  return result;
}

TEST(TensorTimeline, ThreeLayersAsTheTextbookDrawsThem) {
  ThreeLayers net;
  const TensorTimeline timeline = recorded(net);
  const auto a = select(timeline, TensorKind::activation, "aten::relu");
  auto g = select(timeline, TensorKind::gradient);
  ASSERT_EQ(a.size(), 3u) << timeline.to_string();
  ASSERT_EQ(g.size(), 3u) << timeline.to_string();
  // Activations end in the reverse order of their making, gradients come in that order.
  EXPECT_LT(a[2].died, a[1].died);
  EXPECT_LT(a[1].died, a[0].died);
  EXPECT_THAT(g[0].name + g[1].name + g[2].name, "4.weight2.weight0.weight");
  const auto &g3 = g[0], &g2 = g[1], &g1 = g[2];
  // G3 is made of A2, G2 of A1: each activation is there until the gradient that needs it, and gone for the next.
  EXPECT_FALSE(a[2].alive_after(g3.born));
  EXPECT_TRUE(a[1].alive_after(g3.born));
  EXPECT_TRUE(a[0].alive_after(g2.born));
  EXPECT_FALSE(a[1].alive_after(g2.born));
  EXPECT_FALSE(a[0].alive_after(g1.born));
  for (const TensorLife& gradient : g) {
    EXPECT_EQ(gradient.died, timeline.events) << "the optimizer reads it behind backward";
    EXPECT_EQ(gradient.phase, "backward");
    EXPECT_NE(gradient.node, "");
  }
  for (const TensorLife& activation : a) {
    EXPECT_EQ(activation.phase, "forward");
    EXPECT_EQ(activation.element_bytes, 4);
  }
}

TEST(TensorTimeline, KindsAndThePeakAddUp) {
  ThreeLayers net;
  TensorRecorder recorder(Model::of(net.layers));
  net.step();
  recorder.begin();
  const MemoryScope measured;
  net.step();
  const int64_t growth = measured.peak_growth_bytes();
  const TensorTimeline timeline = recorder.end();
  const TensorTimeline::Moment peak = timeline.peak();
  EXPECT_EQ(peak.bytes - timeline.bytes_over_time().front(), growth);
  const int64_t weights = 3 * layer_width * layer_width * 4;
  EXPECT_NEAR(peak.of(TensorKind::weight), weights, 4096);
  EXPECT_NEAR(peak.of(TensorKind::optimizer), weights, 3 * 4200);
  EXPECT_NEAR(peak.of(TensorKind::input), batch_rows * layer_width * 4, 4200);
  int64_t sum = 0;
  for (const int64_t bytes : peak.by_kind) sum += bytes;
  EXPECT_EQ(sum, peak.bytes);
  EXPECT_THAT(timeline.to_string(), testing::HasSubstr("optimizer state"));
}

TEST(TensorTimeline, ChangesNoBit) {
  ThreeLayers plain, watched;
  plain.step();
  plain.step();
  recorded(watched);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(torch::equal(plain.layers->parameters()[i], watched.layers->parameters()[i])) << i;
    EXPECT_TRUE(torch::equal(plain.layers->parameters()[i].grad(), watched.layers->parameters()[i].grad())) << i;
  }
}

TEST(TensorTimeline, PageAndTraceHoldEveryLargeTensor) {
  ThreeLayers net;
  const TensorTimeline timeline = recorded(net);
  const std::string page = timeline.to_html("three <layers>");
  EXPECT_THAT(page, testing::HasSubstr("three &lt;layers&gt;"));
  EXPECT_THAT(page, testing::HasSubstr("192.0 KiB aten::relu"));
  EXPECT_THAT(page, testing::HasSubstr("4.weight"));
  EXPECT_THAT(page, testing::Not(testing::ContainsRegex("(src|href)=")));
  TraceWriter writer;
  timeline.draw(writer);
  const auto trace = nlohmann::json::parse(writer.to_json());
  int64_t activations = 0;
  double most = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["args"]["kind"] == "activations" && event["name"] == "192.0 KiB aten::relu")
      ++activations;
    if (event["ph"] == "C" && event["name"] == "weights [MiB]") most = event["args"]["value"];
  }
  EXPECT_EQ(activations, 3);
  EXPECT_NEAR(most, 3 * layer_width * layer_width * 4 / 1048576.0, 0.01);
}

TEST(TensorTimeline, EndWithoutBeginIsAnError) {
  ThreeLayers net;
  TensorRecorder recorder(Model::of(net.layers));
  EXPECT_THROW(recorder.end(), c10::Error);
}

}  // namespace
}  // namespace bellows::inspect
