#include "bellows/models/resnet.h"
#include "tests/graph/pass_support.h"
#include "tests/graph/training.h"
#include "tests/models/small_models.h"

namespace bellows::graph::testing {
namespace {

using Kernels = PassBackend::Kernels;

/// The groups of the program that ran last.
std::vector<const Instruction*> groups_of(const PassBackend& backend, const std::string& kind) {
  std::vector<const Instruction*> found;
  for (const Instruction& one : backend.programs.back().instructions) {
    if (one.group && one.kind == kind) found.push_back(&one);
  }
  return found;
}

/// Bit for bit as groups that run their operators, and close by as expressions.
std::shared_ptr<PassBackend> expect_fused(const std::function<Program()>& make, double tolerance = 1e-5) {
  expect_passed(make, PassBackend({.exact = true}));
  return expect_passed(make, PassBackend({}, Kernels::groups), tolerance);
}

TEST(LoopFusion, ChainsWithBroadcastAndCastsAreOneGroup) {
  const auto backend = expect_fused(pure(
      [](const Tensors& x) -> Tensors { return {((x[0] + x[1]).to(at::kDouble).tanh() * 2).to(at::kFloat) - x[0]}; },
      {{5, 7}, {7}}));
  ASSERT_EQ(backend->programs.back().instructions.size(), 1u) << backend->programs.back().to_text();
  EXPECT_EQ(groups_of(*backend, "pointwise").size(), 1u);
}

TEST(LoopFusion, SeveralResultsAndReadersOutside) {
  const auto backend = expect_fused(pure(
      [](const Tensors& x) -> Tensors {
        const at::Tensor a = x[0].exp(), b = a + 1;
        return {a, b * x[0], b.mm(x[1])};
      },
      {{5, 7}, {7, 3}}));
  const auto groups = groups_of(*backend, "pointwise");
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0]->results.size(), 3u);
}

TEST(LoopFusion, DoesNotReachAroundWhatLiesBetween) {
  const auto backend = expect_fused(pure(
      [](const Tensors& x) -> Tensors {
        const at::Tensor a = x[0].exp() + 1;
        return {a.mm(x[1]).relu() * a};  // the product lies between the two
      },
      {{5, 5}, {5, 5}}));
  EXPECT_GT(backend->programs.back().instructions.size(), 1u);
  for (const Instruction& one : backend->programs.back().instructions)
    EXPECT_LT(one.group ? one.group->instructions.size() : 0u, 4u);
}

TEST(LoopFusion, NothingIsReadWhenItIsOverwritten) {
  const auto backend = expect_fused(pure(
      [](const Tensors& x) -> Tensors {
        const at::Tensor before = x[0] * 2;
        const at::Tensor mean = x[0].mean();  // of what x holds now
        x[0].add_(x[1]).mul_(0.5);
        x[0].slice(0, 0, 2).copy_(x[1].slice(0, 2, 4));
        return {before - x[0], x[0].t() + 1, mean + x[0]};
      },
      {{4, 4}, {4, 4}}));
  EXPECT_GT(backend->fired("loops"), 0);
}

TEST(LoopFusion, RowsThatAreReducedAndUsedAgain) {
  const auto backend = expect_fused(pure(
      [](const Tensors& x) -> Tensors {
        const at::Tensor y = at::layer_norm(x[0] + x[1], {8}, x[2], x[2]);
        return {at::softmax(y * 0.5, -1) + 1, y.sum(-1)};
      },
      {{6, 8}, {6, 8}, {8}}));
  const auto groups = groups_of(*backend, "reduction");
  ASSERT_EQ(groups.size(), 1u) << backend->programs.back().to_text();
  EXPECT_EQ(groups[0]->group->instructions.size(), 6u);
}

TEST(LoopFusion, ReshapedRowsAreTheSamePlaces) {
  const auto backend = expect_fused(pure(
      [](const Tensors& x) -> Tensors {
        return {(x[0].exp().view({2, 3, 8}) + x[1]).view({2, 24}).relu()};
      },
      {{6, 8}, {2, 3, 8}}));
  ASSERT_EQ(backend->programs.back().instructions.size(), 1u) << backend->programs.back().to_text();
}

TEST(LoopFusion, TransposedPlacesAreNot) {
  const auto backend =
      expect_fused(pure([](const Tensors& x) -> Tensors { return {x[0].exp().t() + x[0]}; }, {{6, 6}}));
  EXPECT_EQ(backend->programs.back().instructions.size(), 2u);
}

TEST(LoopFusion, GroupsAreBounded) {
  const auto make = pure(
      [](const Tensors& x) -> Tensors {
        at::Tensor y = x[0];
        for (int i = 0; i < 20; ++i) y = y * 1.01 + x[0];
        return {y};
      },
      {{8}});
  const auto backend = expect_passed(make, PassBackend({.exact = true, .max_group = 8}));
  EXPECT_GE(backend->programs.back().instructions.size(), 5u);
  for (const Instruction& one : backend->programs.back().instructions) EXPECT_LE(one.group->instructions.size(), 8u);
}

TEST(LoopFusion, AsksWhetherCodeCanBeMade) {
  PassOptions options;
  options.can_generate = [](const Expression& expression) { return !expression.has_reductions(); };
  const auto make = pure(
      [](const Tensors& x) -> Tensors {
        return {(x[0] + 1).exp(), at::softmax(x[0] * 2, -1)};
      },
      {{4, 9}});
  const auto backend = expect_passed(make, PassBackend(options));
  EXPECT_EQ(groups_of(*backend, "reduction").size(), 0u);
  EXPECT_EQ(groups_of(*backend, "pointwise").size(), 1u);
}

TEST(Updates, OfAllParametersAreOneGroup) {
  for (const bool adamw : {false, true}) {
    const auto make = [=] {
      auto net = mlp();
      net->eval();
      const auto loss = classify(net, torch::randn({8, 16}));
      if (adamw) return training<AdamW>(net.ptr(), loss, AdamWOptions(1e-2));
      return training<SGD>(net.ptr(), loss, SGDOptions(0.1).momentum(0.9));
    };
    const auto backend = expect_fused(make, 2e-4);
    const auto groups = groups_of(*backend, "multi_tensor");
    ASSERT_GE(groups.size(), 1u) << backend->programs.back().to_text();
    size_t most = 0;
    for (const Instruction* group : groups) most = std::max(most, group->group->instructions.size());
    EXPECT_EQ(most, 6u) << backend->programs.back().to_text();
  }
}

TEST(LoopFusion, NetworksTrainAlike) {
  expect_fused(
      [] {
        auto net = conv_net();
        return training<SGD>(net.ptr(), classify(net, torch::randn({2, 3, 8, 8})), SGDOptions(0.05).momentum(0.9));
      },
      1e-3);
  const auto bert = expect_fused(
      [] {
        const Model model = models::bert(models::wide_bert());
        model.eval();
        const at::Tensor ids = torch::randint(1, 50, {2, 8}), y = torch::randint(0, 2, {2});
        return training<AdamW>(
            model.module(), [=](int) { return nn::functional::cross_entropy(model.forward(ids), y); },
            AdamWOptions(1e-4));
      },
      5e-3);
  const auto& row = bert->reports.back().rows;
  const auto loops = std::find_if(row.begin(), row.end(), [](const auto& one) { return one.name == "loops"; });
  ASSERT_NE(loops, row.end());
  EXPECT_LT(loops->instructions_after * 2, loops->instructions_before) << bert->reports.back().to_text();
  EXPECT_LT(loops->bytes_after, loops->bytes_before);
  RecordProperty("passes", bert->reports.back().to_text());
}

}  // namespace
}  // namespace bellows::graph::testing
