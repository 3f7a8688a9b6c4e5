#include "bellows/parallel/pipeline/split_backward.h"

#include <gmock/gmock.h>

#include "bellows/recompute/activation_checkpoint.h"
#include "tests/parallel/pipeline/pipeline_support.h"
#include "tests/support/errors.h"

// Both parts together compute what backward() computes.
namespace bellows::parallel::testing::stages {
namespace {

using ::testing::HasSubstr;

at::Tensor weight_of(at::IntArrayRef sizes, uint64_t seed) {
  return tensor::drawn(sizes, seed).requires_grad_();
}

struct Graph {
  std::vector<at::Tensor> weights;
  std::function<at::Tensor(const at::Tensor& x)> run;
};

/// A residual block with a norm, a weight that is used twice, one that is added, and one behind another operator.
Graph residual_graph() {
  const std::vector<at::Tensor> w = {weight_of({8, 8}, 1), weight_of({8}, 2),    weight_of({8}, 3),   weight_of({8}, 4),
                                     weight_of({8, 8}, 5), weight_of({3, 8}, 6), weight_of({8, 8}, 7)};
  return {w, [w](const at::Tensor& x) {
            const at::Tensor y = at::layer_norm(x, {8}, w[1], w[2], 1e-5);
            const at::Tensor z = x + at::gelu(at::linear(y, w[0].t(), w[3]));
            const at::Tensor twice = at::linear(at::relu(at::linear(z, w[4])), w[4]);
            return at::linear(twice + w[5], w[6].exp());
          }};
}

TEST(SplitBackward, GradientsAreThoseOfBackward) {
  const Graph graph = residual_graph();
  const at::Tensor x = weight_of({2, 3, 8}, 20), gradient = tensor::drawn({2, 3, 8}, 21);
  for (int round = 0; round < 2; ++round) graph.run(x).backward(gradient);  // gradients add up
  std::vector<at::Tensor> expected = {x.grad().clone()};
  for (const at::Tensor& weight : graph.weights)
    expected.push_back(std::exchange(at::Tensor(weight).mutable_grad(), {}));
  x.mutable_grad().reset();
  std::vector<SplitBackward> later;
  for (int round = 0; round < 2; ++round) later.emplace_back(graph.run(x), gradient, x);
  EXPECT_TRUE(at::allclose(x.grad(), expected[0], 1e-12, 1e-12));
  EXPECT_FALSE(graph.weights[0].grad().defined()) << "weights must wait";
  EXPECT_FALSE(graph.weights[6].grad().defined()) << "weights must wait";
  for (SplitBackward& one : later) one.weights();
  for (size_t i = 0; i < graph.weights.size(); ++i)
    EXPECT_TRUE(at::allclose(graph.weights[i].grad(), expected[i + 1], 1e-12, 1e-12)) << "weight " << i;
}

TEST(SplitBackward, WorksWithActivationCheckpointing) {
  const Graph graph = residual_graph();
  const at::Tensor x = weight_of({2, 3, 8}, 20), gradient = tensor::drawn({2, 3, 8}, 21);
  graph.run(x).backward(gradient);
  const at::Tensor expected = std::exchange(at::Tensor(graph.weights[0]).mutable_grad(), {});
  x.mutable_grad().reset();
  SplitBackward split(recompute::checkpoint(graph.run, x), gradient, x);
  split.weights();
  EXPECT_TRUE(at::allclose(graph.weights[0].grad(), expected, 1e-12, 1e-12));
}

/// A hook changes the gradient at the node where the path to the weight leaves the path to the input.
TEST(SplitBackward, HooksOfTensorsChangeGradientsOnce) {
  const at::Tensor x = weight_of({3, 8}, 1), w = weight_of({8, 8}, 2), gradient = tensor::drawn({3, 8}, 3);
  const auto run = [&] {
    const at::Tensor y = at::linear(x, w);
    y.register_hook([](const at::Tensor& one) { return one * 3; });
    return at::relu(y);
  };
  run().backward(gradient);
  const at::Tensor of_input = std::exchange(x.mutable_grad(), {}), of_weight = std::exchange(w.mutable_grad(), {});
  SplitBackward split(run(), gradient, x);
  split.weights();
  EXPECT_TRUE(at::allclose(x.grad(), of_input, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(w.grad(), of_weight, 1e-12, 1e-12));
}

TEST(SplitBackward, RefusesOutputsThatDoNotUseTheInput) {
  const at::Tensor x = weight_of({2}, 1), w = weight_of({2}, 2);
  EXPECT_THAT(message_of([&] { SplitBackward(w * 2, at::ones({2}, at::kDouble), x); }),
              HasSubstr("does not depend on its input"));
}

}  // namespace
}  // namespace bellows::parallel::testing::stages
