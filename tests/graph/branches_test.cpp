#include "bellows/compile.h"
#include "tests/graph/support.h"

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

/// A step whose shapes and operators are those of way `call % ways`.
Program branching(int ways) {
  torch::nn::Linear net(6, 4);
  auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.01));
  const at::Tensor x = torch::randn({8, 6});
  return {[=](int call) mutable -> Tensors {
            const int way = call % ways;
            optimizer->zero_grad();
            at::Tensor y = net->forward(x.slice(0, 0, 4 + way));
            if (way % 2) y = at::tanh(y * 0.5);
            for (int i = 0; i < way; ++i) y = y + i;
            const at::Tensor loss = y.pow(2).mean();
            loss.backward();
            optimizer->step();
            return {loss, y};
          },
          [=] { return state_of(*net); }};
}

TEST(RegionBranches, AlternatingCallsCostNothingAfterTheFirstOfEach) {
  const Explanation said = expect_same([] { return branching(2); }, 100);
  EXPECT_LE(said.mismatches, 3) << said.to_text();
  EXPECT_GE(said.followed_calls, 96);
}

TEST(RegionBranches, AsManyWaysAsAreKept) {
  const Explanation said = expect_same([] { return branching(5); }, 50);
  EXPECT_GE(said.followed_calls, 44) << said.to_text();
  EXPECT_EQ(said.dropped, 0);
}

TEST(RegionBranches, MoreWaysThanAreKeptStayRightAndBounded) {
  const Explanation said = expect_same([] { return branching(6); }, 24, {.max_recordings = 3});
  EXPECT_EQ(said.recordings, 3);
  EXPECT_GT(said.dropped, 10);
}

TEST(RegionBranches, TheOneUsedLongestAgoMakesRoom) {
  Region region({.max_recordings = 2});
  const at::Tensor x = torch::ones({4});
  const auto call = [&](int64_t size) { region.run([&] { (x.slice(0, 0, size) + 1).mul(2); }); };
  for (const int64_t size : {1, 2, 1, 3, 1}) call(size);
  EXPECT_EQ(region.explain().mismatches, 2);
  call(2);
  EXPECT_EQ(region.explain().mismatches, 3);
}

TEST(RegionBranches, AnEndThatComesEarlierOrLater) {
  const Explanation said = expect_same(
      [] {
        const at::Tensor x = torch::randn({4});
        return Program{[=](int call) -> Tensors {
          at::Tensor y = x;
          for (int i = 0; i < 3 + call % 3; ++i) y = y.sin();
          return {y};
        }};
      },
      12);
  EXPECT_EQ(said.recordings, 1);
  EXPECT_EQ(said.mismatches, 0);
}

TEST(RegionBranches, CausesAreNamed) {
  Region region;
  const auto run = [&](int64_t size, bool tanh, bool grad) {
    const at::Tensor x = torch::ones({size}, torch::requires_grad());
    region.run([&] {
      const at::AutoGradMode mode(grad);
      const at::Tensor y = x * 2;
      tanh ? y.tanh() : y.sigmoid();
    });
  };
  run(2, true, true);
  run(2, false, true);
  run(3, false, true);
  run(2, false, false);
  const std::string text = region.explain().to_text();
  EXPECT_THAT(text, HasSubstr("1 × aten::sigmoid: instead of aten::tanh"));
  EXPECT_THAT(text, HasSubstr("1 × aten::mul.Scalar: argument 0: sizes [3] instead of [2]"));
  EXPECT_THAT(text, HasSubstr("aten::mul.Scalar: grad mode off instead of on"));
}

TEST(RegionBranches, CallsThatAreTooLongRunPlainly) {
  const Explanation said = expect_same(
      [] {
        const at::Tensor x = torch::randn({4});
        return Program{[=](int) -> Tensors {
          at::Tensor y = x;
          for (int i = 0; i < 30; ++i) y = y.sin();
          return {y};
        }};
      },
      3, {.max_operators = 20});
  EXPECT_EQ(said.abandoned, 3);
  EXPECT_EQ(said.recorded, 20);
  EXPECT_EQ(said.followed, 40);
}

TEST(Compile, TakesAndGivesWhatTheFunctionDoes) {
  const at::Tensor w = torch::ones({3, 3});
  auto forward = compile([w](const at::Tensor& x, double scale) { return at::mm(x, w) * scale; }, {.generate = false});
  auto same = forward;
  for (int call = 1; call < 4; ++call)
    EXPECT_EQ((call % 2 ? forward : same)(torch::ones({2, 3}), call).sum().item<double>(), 18 * call);
  EXPECT_EQ(forward.explain().calls, 3);
  EXPECT_EQ(forward.explain().followed_calls, 2);
  EXPECT_EQ(forward.recordings().size(), 1u);

  auto in_place = compile([](at::Tensor& x) -> at::Tensor& { return x.add_(1); }, {.exact = true});
  auto nothing = compile([&](at::Tensor& x) { x.mul_(2); });
  at::Tensor x = torch::ones({2});
  for (int call = 0; call < 3; ++call) {
    EXPECT_EQ(&in_place(x), &x);
    nothing(x);
  }
  EXPECT_EQ(x[0].item<double>(), 22);
}

}  // namespace
}  // namespace bellows::graph::testing
