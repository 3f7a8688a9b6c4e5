#include "bellows/graph/recording/replay.h"

#include <torch/script.h>

#include <sstream>

#include "bellows/models/resnet.h"
#include "tests/graph/kept_programs.h"

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

TEST(Replay, DoesAgainWhatTheFunctionDid) {
  const Model model = models::resnet18({.num_classes = 10});
  model.module()->eval();
  const at::NoGradGuard no_grad;
  int calls = 0;
  Replay replay(
      [&](const Tensors& in) -> Tensors {
        ++calls;
        const at::Tensor y = model.forward(in[0]);
        return {y, y.t(), in[0], y.softmax(1)};
      },
      {torch::randn({2, 3, 32, 32})});
  EXPECT_EQ(calls, 2);
  for (int round = 0; round < 3; ++round) {
    const at::Tensor x = torch::randn({2, 3, 32, 32});
    const Tensors got = replay({x});
    const at::Tensor y = model.forward(x);
    EXPECT_EQ(first_difference(got, {y, y.t(), x, y.softmax(1)}), -1);
    EXPECT_TRUE(got[0].storage().is_alias_of(got[1].storage()));
    for (at::Tensor parameter : model.parameters()) parameter.mul_(0.99);  // kept as they are at the time
  }
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(error_of([&] {
                replay({torch::randn({3, 3, 32, 32})});
              }),
              HasSubstr("argument 0: sizes [3, 3, 32, 32] instead of [2, 3, 32, 32]"));
  EXPECT_THAT(error_of([&] { replay({}); }), HasSubstr("expected 1 tensors, got 0"));
}

TEST(Replay, WritesWhatTheFunctionWrote) {
  const at::Tensor state = torch::zeros({3});
  Replay replay(
      [&](const Tensors& in) -> Tensors {
        state.add_(in[0]);
        in[1].mul_(2);
        return {state * 1};
      },
      {torch::ones({3}), torch::ones({3})});
  state.zero_();
  const at::Tensor doubled = torch::ones({3});
  for (int round = 1; round < 4; ++round)
    EXPECT_EQ(replay({torch::full({3}, 2.0), doubled})[0][0].item<int>(), 2 * round);
  EXPECT_EQ(doubled[0].item<int>(), 8);
  EXPECT_EQ(state[2].item<int>(), 6);
}

TEST(Replay, MakesAnewWhatTheFunctionMadeItself) {
  Replay replay(
      [](const Tensors& in) -> Tensors {
        const at::Tensor sum = torch::full({3}, 5.0), other = torch::ones({3});
        sum.add_(in[0]);
        return {sum, other * in[0], other};
      },
      {torch::ones({3})});
  Tensors before;
  for (int round = 1; round < 4; ++round) {
    const Tensors got = replay({torch::full({3}, static_cast<float>(round))});
    EXPECT_EQ(got[0][1].item<int>(), 5 + round);
    EXPECT_EQ(got[1][1].item<int>(), round);
    EXPECT_EQ(got[2][1].item<int>(), 1);
    if (!before.empty()) {
      EXPECT_EQ(before[0][1].item<int>(), 4 + round);
    }
    before = got;
  }
}

TEST(Replay, RefusesWhatOnlyTheFunctionCanDo) {
  const auto refused = [](const Replay::Function& function) {
    return error_of([&] { Replay({function}, {torch::ones({3})}); });
  };
  EXPECT_THAT(refused([](const Tensors& in) { return Tensors{in[0] * in[0].sum().item<double>()}; }),
              HasSubstr("aten::_local_scalar_dense needs a value on the host"));
  EXPECT_THAT(refused([](const Tensors& in) { return Tensors{in[0] + at::rand({3})}; }), HasSubstr("random numbers"));
  int call = 0;
  EXPECT_THAT(refused([&](const Tensors& in) { return Tensors{++call % 2 ? in[0].sin() : in[0].cos()}; }),
              HasSubstr("2 different recordings"));
  EXPECT_THAT(refused([](const Tensors& in) { return in; }), HasSubstr("computes nothing"));
  const at::Tensor x = torch::ones({3});
  EXPECT_THAT(error_of([&] {
                Replay([](const Tensors& in) { return Tensors{in[0] + in[1]}; }, {x, x.view({3})});
              }),
              HasSubstr("share memory"));
}

TEST(Replay, TakesTorchScript) {
  torch::jit::Module module("net");
  module.register_parameter("weight", torch::randn({4, 4}), false);
  module.define(R"(
    def forward(self, x):
        for i in range(3):
            x = torch.relu(torch.mm(x, self.weight) + float(i))
        return x
  )");
  const at::NoGradGuard no_grad;
  Replay replay([module](const Tensors& in) mutable { return Tensors{module.forward({in[0]}).toTensor()}; },
                {torch::randn({2, 4})});
  const at::Tensor x = torch::randn({2, 4});
  EXPECT_TRUE(same_bits(replay({x})[0], module.forward({x}).toTensor()));
  EXPECT_GE(replay.program().instructions.size(), 9u);
}

// A branch on data and a loop whose length data decides: only the script itself can do that.
TEST(Replay, RefusesTorchScriptThatLooksAtDataWhichARegionFollows) {
  torch::jit::Module made("net");
  made.register_parameter("weight", torch::randn({4, 4}), false);
  made.define(R"(
    def forward(self, x):
        y = torch.mm(x, self.weight)
        while bool(y.abs().max() < 10):
            y = y * 2
        return torch.relu(y) if bool(y.sum() > 0) else -y
  )");
  std::stringstream file;
  made.save(file);
  torch::jit::Module module = torch::jit::load(file);
  const at::NoGradGuard no_grad;
  const auto forward = [&](const Tensors& in) { return Tensors{module.forward({in[0]}).toTensor()}; };
  EXPECT_THAT(error_of([&] {
                Replay(forward, {torch::ones({2, 4})});
              }),
              HasSubstr("aten::_local_scalar_dense needs a value on the host"));
  Region region;
  for (int call = 0; call < 12; ++call) {
    const at::Tensor x = torch::randn({2, 4}) * (call % 3 + 1), expected = forward({x})[0];
    at::Tensor got;
    region.run([&] { got = forward({x})[0]; });
    EXPECT_TRUE(same_bits(got, expected)) << call;
  }
  EXPECT_GT(region.explain().followed, 0);
}

}  // namespace
}  // namespace bellows::graph::testing
