// Functions that are not faster when they are compiled run eagerly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "bellows/compile.h"
#include "bellows/compile/cost_model.h"
#include "bellows/graph/recording/plain_calls.h"

namespace bellows::compile_detail::testing {
namespace {

using ::testing::HasSubstr;

/// Two small operators, or the same on a large tensor, where fusing them saves memory traffic.
at::Tensor small_or_large(const at::Tensor& x) {
  const c10::InferenceMode inference;
  return (x * 2).tanh();
}

TEST(PlainCalls, OneCallIsFollowedAfterEachStreak) {
  graph::detail::PlainCalls calls;
  const at::Tensor x = torch::ones({2});
  const std::vector<const at::Tensor*> arguments{&x};
  EXPECT_EQ(calls.kind_of_call(arguments), 0u) << "no call was in vain yet";
  calls.note_first(arguments, false);
  EXPECT_EQ(calls.kind_of_call(arguments), 0u);
  calls.note_first(arguments, true);
  const uint64_t kind = calls.kind_of_call(arguments);
  EXPECT_TRUE(calls.take(kind)) << "the first call in vain begins a streak of one call";
  for (const int streak : {16, 256, 256}) {
    EXPECT_FALSE(calls.take(kind));
    calls.note(kind, true);
    for (int call = 0; call < streak; ++call) EXPECT_TRUE(calls.take(kind)) << streak << ", " << call;
  }
  EXPECT_FALSE(calls.take(kind));
  calls.note(kind, false);  // the function has changed
  EXPECT_FALSE(calls.take(kind));
  calls.note(kind, true);
  EXPECT_TRUE(calls.take(kind));
  EXPECT_FALSE(calls.take(kind)) << "streaks start again with one call";
}

TEST(PlainCalls, KindsDifferInWhatOperatorsDependOn) {
  graph::detail::PlainCalls calls;
  calls.note(0, true);
  const auto kind = [&](const at::Tensor& x) {
    const std::vector<const at::Tensor*> arguments{&x};
    return calls.kind_of_call(arguments);
  };
  const at::Tensor x = torch::ones({2, 3});
  EXPECT_EQ(kind(x), kind(torch::zeros({2, 3})));
  EXPECT_NE(kind(x), kind(torch::ones({3, 2})));
  EXPECT_NE(kind(x), kind(torch::ones({3, 2}).t()));
  EXPECT_NE(kind(x), kind(x.to(at::kDouble)));
  EXPECT_NE(kind(x), kind(x.detach().requires_grad_()));
  EXPECT_NE(kind(x), kind(at::Tensor()));
  const uint64_t with_grad = kind(x);
  const at::NoGradGuard no_grad;
  EXPECT_NE(kind(x), with_grad);
}

TEST(PlainCalls, SmallFunctionsRunEagerly) {
  const auto compiled = compile(&small_or_large);
  const at::Tensor x = torch::randn({8});
  for (int call = 0; call < 100; ++call) EXPECT_TRUE(at::equal(compiled(x), small_or_large(x)));
  const graph::Explanation said = compiled.explain();
  EXPECT_GE(said.plain_calls, 90);
  EXPECT_EQ(said.calls, 100);
  EXPECT_THAT(said.to_text(), HasSubstr("not compiled: a call is expected to take"));
  EXPECT_THAT(said.to_text(), Not(HasSubstr("kernels:"))) << "no time is spent on kernels";
}

TEST(PlainCalls, LargeArgumentsOfTheSameFunctionAreCompiled) {
  const auto compiled = compile(&small_or_large);
  const at::Tensor small = torch::randn({8}), large = torch::randn({300'000});
  for (int call = 0; call < 20; ++call) compiled(small);
  const int64_t plain = compiled.explain().plain_calls, ran = compiled.explain().program_runs;
  EXPECT_GT(plain, 0);
  for (int call = 0; call < 20; ++call) EXPECT_TRUE(at::allclose(compiled(large), small_or_large(large)));
  EXPECT_EQ(compiled.explain().plain_calls, plain);
  EXPECT_EQ(compiled.explain().program_runs, ran + 20);
  EXPECT_THAT(compiled.explain().to_text(), HasSubstr("kernels: 1"));
}

TEST(PlainCalls, AListOfTensorsCountsAsArguments) {
  const auto compiled = compile([](const std::vector<at::Tensor>& all) { return small_or_large(all.at(0)); });
  for (int call = 0; call < 20; ++call) compiled(std::vector<at::Tensor>{torch::randn({8})});
  const int64_t plain = compiled.explain().plain_calls;
  EXPECT_GT(plain, 0);
  for (int call = 0; call < 20; ++call) compiled(std::vector<at::Tensor>{torch::randn({300'000})});
  EXPECT_EQ(compiled.explain().plain_calls, plain);
}

/// The function depends on a tensor that is not an argument, so that only calls that are followed can find this.
TEST(PlainCalls, AFunctionThatChangesIsFoundAfterAStreak) {
  at::Tensor x = torch::randn({8});
  const auto compiled = compile([&] { return small_or_large(x); });
  for (int call = 0; call < 600; ++call) compiled();
  x = torch::randn({300'000});
  for (int call = 0; call < 260; ++call) EXPECT_TRUE(at::allclose(compiled(), small_or_large(x)));
  const int64_t plain = compiled.explain().plain_calls;
  for (int call = 0; call < 20; ++call) compiled();
  EXPECT_EQ(compiled.explain().plain_calls, plain);
}

TEST(PlainCalls, TrainingStepsHaveTheBitsOfEagerSteps) {
  const auto train = [](bool compiles) {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(4, 3), torch::nn::Dropout(0.5), torch::nn::Linear(3, 1));
    torch::optim::Adam optimizer(net->parameters(), 0.01);
    const auto body = [&](const at::Tensor& x) {
      optimizer.zero_grad();
      net->forward(x).square().sum().backward();
      optimizer.step();
    };
    const auto step = compile(body);
    for (int i = 0; i < 40; ++i) {
      const at::Tensor x = torch::randn({i % 7 == 6 ? 2 : 5, 4});
      compiles ? step(x) : body(x);
    }
    EXPECT_TRUE(!compiles || step.explain().plain_calls > 0);
    return net->parameters();
  };
  const auto eager = train(false), compiled = train(true);
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(at::equal(eager[i], compiled[i])) << i;
}

TEST(PlainCalls, OptionsThatAskForAProgramGetOne) {
  const at::Tensor x = torch::randn({8}), w = torch::randn({8});
  const auto body = [w](const at::Tensor& each) {
    const c10::InferenceMode inference;
    return each * w.sigmoid();
  };
  for (const CompileOptions& options : std::initializer_list<CompileOptions>{
           {.always = true}, {.exact = true}, {.generate = false}, {.frozen = {w}}, {.autocast = at::kBFloat16}}) {
    const auto compiled = compile(body, options);
    for (int call = 0; call < 10; ++call) compiled(x);
    EXPECT_EQ(compiled.explain().plain_calls, 0);
  }
}

TEST(CostModel, WeighsTrafficAgainstDispatch) {
  const ProgramWork recorded{.instructions = 200, .traffic_us = 400};
  EXPECT_GT(expected_gain_us(recorded, {.instructions = 50, .traffic_us = 200}), 0);
  EXPECT_LT(expected_gain_us(recorded, {.instructions = 50, .traffic_us = 399}), 0) << "hardly less traffic";
  EXPECT_LT(expected_gain_us(recorded, {.instructions = 190, .traffic_us = 200}), 0) << "hardly fewer instructions";
}

}  // namespace
}  // namespace bellows::compile_detail::testing
