// Calls that run their program without the function.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "bellows/compile.h"
#include "tests/support/captured_log.h"

namespace bellows::compile_detail::testing {
namespace {

using ::testing::HasSubstr;
namespace nn = torch::nn;

/// After three identical calls, calls are replayed. The programs have the bits of eager code.
const CompileOptions replayed{.exact = true, .replay = {.after = 3}};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || at::equal(a, b));
}

std::string why(const graph::Explanation& said) {
  return said.replay_causes.empty() ? "" : said.replay_causes[0].op + ": " + said.replay_causes[0].why;
}

nn::Sequential mlp(double dropout = 0) {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(8, 16), nn::GELU(), nn::Dropout(dropout), nn::Linear(16, 4));
}

/// A training step and everything that it leaves behind.
template <class Optimizer, class Options>
struct Training {
  explicit Training(const Options& options, double dropout = 0)
      : net(mlp(dropout)), optimizer(net->parameters(), options) {}
  at::Tensor step(const at::Tensor& x, const at::Tensor& y) {
    ++calls;
    optimizer.zero_grad();
    const at::Tensor loss = nn::functional::mse_loss(net->forward(x), y);
    loss.backward();
    optimizer.step();
    return loss.detach();
  }
  std::vector<at::Tensor> state() {
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : net->parameters()) {
      all.push_back(parameter.detach().clone());
      all.push_back(parameter.grad().clone());
    }
    return all;
  }
  nn::Sequential net;
  Optimizer optimizer;
  int calls = 0;
};

TEST(Replay, InferenceRunsWithoutTheFunction) {
  nn::Sequential net = mlp();
  int calls = 0;
  const auto compiled = compile(
      [&](const at::Tensor& x) {
        ++calls;
        const at::NoGradGuard no_grad;
        return net->forward(x).squeeze(0);
      },
      replayed);
  std::vector<at::Tensor> results, expected;
  for (int call = 0; call < 20; ++call) {
    const at::Tensor x = torch::randn({5, 8});
    results.push_back(compiled(x));
    const at::NoGradGuard no_grad;
    expected.push_back(net->forward(x));
  }
  const graph::Explanation said = compiled.explain();
  EXPECT_EQ(said.replayed_calls, 16) << said.to_text();
  EXPECT_EQ(calls, 4) << "one is recorded, and three are followed";
  EXPECT_EQ(said.calls, 20);
  for (int call = 0; call < 20; ++call) {
    EXPECT_TRUE(same_bits(results[call], expected[call])) << call;
    EXPECT_FALSE(results[call].requires_grad());
  }
  EXPECT_THAT(said.to_text(), HasSubstr("16 replayed without calling the function"));
}

TEST(Replay, GeneratedProgramsAreReplayed) {
  nn::Sequential net = mlp();
  net->eval();
  const auto body = [&](const at::Tensor& x) {
    const c10::InferenceMode inference;
    return net->forward(x).tanh();
  };
  const auto followed = compile(body, {.always = true}), compiled = compile(body, {.replay = {.after = 2}});
  for (int call = 0; call < 10; ++call) {
    const at::Tensor x = torch::randn({5, 8});
    const at::Tensor a = followed(x), b = compiled(x);
    EXPECT_TRUE(same_bits(a, b)) << call;
    EXPECT_EQ(a.is_inference(), b.is_inference());
  }
  EXPECT_EQ(compiled.explain().replayed_calls, 7) << compiled.explain().to_text();
}

TEST(Replay, GeneratedTrainingStepsHaveTheBitsOfFollowedSteps) {
  using Task = Training<torch::optim::SGD, torch::optim::SGDOptions>;
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  Task followed(options, 0.2), task(options, 0.2);
  const auto compiled = [](Task& of, const CompileOptions& how) {
    return compile([&of](const at::Tensor& x, const at::Tensor& y) { return of.step(x, y); }, how);
  };
  const auto a = compiled(followed, {.always = true}), b = compiled(task, {.replay = {.after = 2, .verify_every = 4}});
  const at::Tensor x = torch::randn({6, 8}), y = torch::randn({6, 4});
  for (int call = 0; call < 16; ++call) {
    torch::manual_seed(call);
    const at::Tensor expected = a(x, y);
    torch::manual_seed(call);
    EXPECT_TRUE(same_bits(b(x, y), expected)) << call;
  }
  const auto state = task.state(), expected = followed.state();
  for (size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(same_bits(state[i], expected[i])) << "tensor " << i;
  EXPECT_GE(b.explain().replayed_calls, 9) << b.explain().to_text();
  EXPECT_GE(b.explain().verified_calls, 3);
  EXPECT_EQ(b.explain().replay_stops, 0) << b.explain().to_text();
}

template <class Options>
void expect_trained_alike(const CompileOptions& options, const Options& sgd, double dropout, int64_t replays) {
  using Task = Training<torch::optim::SGD, Options>;
  Task eager(sgd, dropout), task(sgd, dropout);
  const auto step = compile([&](const at::Tensor& x, const at::Tensor& y) { return task.step(x, y); }, options);
  std::vector<at::Tensor> batches;
  for (int i = 0; i < 20; ++i) batches.push_back(torch::randn({6, 12}));
  const auto train = [&](const auto& call) {
    torch::manual_seed(2);
    std::vector<at::Tensor> losses;
    for (const at::Tensor& batch : batches)
      losses.push_back(call(batch.narrow(1, 0, 8).clone(), batch.narrow(1, 8, 4).clone()));
    losses.push_back(torch::rand({3}));  // the state of the generator
    return losses;
  };
  const auto expected = train([&](const at::Tensor& x, const at::Tensor& y) { return eager.step(x, y); });
  const auto losses = train(step);
  EXPECT_EQ(step.explain().replayed_calls, replays) << step.explain().to_text();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(losses[i], expected[i])) << "call " << i;
  const auto state = task.state(), expected_state = eager.state();
  for (size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(same_bits(state[i], expected_state[i])) << "tensor " << i;
}

TEST(Replay, SgdStepsHaveTheBitsOfEagerSteps) {
  expect_trained_alike(replayed, torch::optim::SGDOptions(0.1), 0, 16);
  expect_trained_alike(replayed, torch::optim::SGDOptions(0.1).momentum(0.9), 0, 15);
}

TEST(Replay, RandomNumbersAreThoseOfEagerCode) {
  expect_trained_alike(replayed, torch::optim::SGDOptions(0.1), 0.3, 16);
}

TEST(Replay, GradientsKeepTheirObjectsAndGetNewValues) {
  Training<torch::optim::SGD, torch::optim::SGDOptions> task(torch::optim::SGDOptions(0.1));
  const auto step = compile([&](const at::Tensor& x, const at::Tensor& y) { return task.step(x, y); }, replayed);
  const at::Tensor x = torch::randn({6, 8}), y = torch::randn({6, 4});
  for (int call = 0; call < 6; ++call) step(x, y);
  ASSERT_GT(step.explain().replayed_calls, 0) << step.explain().to_text();
  const at::Tensor weight = task.net->parameters()[0], gradient = weight.grad();
  const at::Tensor before = gradient.clone(), weight_before = weight.detach().clone();
  const auto version = gradient._version(), weight_version = weight._version();
  step(x, y);
  EXPECT_TRUE(weight.grad().is_same(gradient));
  EXPECT_FALSE(at::equal(gradient, before));
  EXPECT_FALSE(at::equal(weight.detach(), weight_before));
  EXPECT_GT(gradient._version(), version);
  EXPECT_GE(weight._version(), weight_version);
}

TEST(Replay, VersionsIncreaseAsInEagerCode) {
  const at::Tensor total = torch::zeros({4});
  const auto add = [&](const at::Tensor& x) {
    total.add_(x);
    total.mul_(2);
  };
  const auto compiled = compile(add, replayed);
  const at::Tensor x = torch::ones({4});
  for (int call = 0; call < 8; ++call) {
    const auto version = total._version();
    compiled(x);
    EXPECT_EQ(total._version(), version + 2) << call;
  }
  EXPECT_EQ(compiled.explain().replayed_calls, 4) << compiled.explain().to_text();
  EXPECT_EQ(total[0].item<double>(), 510);
}

TEST(Replay, OtherShapesAreFollowedAndReplayedLater) {
  nn::Sequential net = mlp();
  int calls = 0;
  const auto compiled = compile(
      [&](const at::Tensor& x) {
        ++calls;
        const at::NoGradGuard no_grad;
        return net->forward(x);
      },
      replayed);
  const auto run = [&](int64_t rows, int times) {
    for (int call = 0; call < times; ++call) {
      const at::Tensor x = torch::randn({rows, 8});
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(same_bits(compiled(x), net->forward(x)));
    }
  };
  run(5, 8);
  EXPECT_EQ(compiled.explain().replayed_calls, 4);
  run(3, 1);
  EXPECT_EQ(compiled.explain().replayed_calls, 4);
  EXPECT_THAT(why(compiled.explain()), HasSubstr("argument 0: sizes [3, 8] instead of [5, 8]"));
  run(5, 8);
  EXPECT_EQ(compiled.explain().replayed_calls, 4 + 5) << "three calls are followed first";
  EXPECT_EQ(compiled.explain().replay_stops, 1);
  EXPECT_EQ(calls, 4 + 1 + 3);
}

TEST(Replay, ArgumentsThatAreNoTensorsAreCompared) {
  const auto compiled = compile(
      [](const at::Tensor& x, double factor, const std::string& how, const std::vector<int64_t>& sizes) {
        const at::NoGradGuard no_grad;
        return (how == "add" ? x + factor : x * factor).view(sizes).tanh();
      },
      replayed);
  const at::Tensor x = torch::randn({4});
  const std::vector<int64_t> sizes{2, 2}, flat{4};
  for (int call = 0; call < 6; ++call) compiled(x, 2., "add", sizes);
  EXPECT_EQ(compiled.explain().replayed_calls, 2) << compiled.explain().to_text();
  EXPECT_TRUE(same_bits(compiled(x, 3., "add", sizes), (x + 3).view(sizes).tanh()));
  EXPECT_TRUE(same_bits(compiled(x, 3., "mul", sizes), (x * 3).view(sizes).tanh()));
  EXPECT_TRUE(same_bits(compiled(x, 3., "mul", flat), (x * 3).tanh()));
  struct Batch {
    at::Tensor x;
  };
  const auto of_struct = compile(
      [](const Batch& batch) {
        const at::NoGradGuard no_grad;
        return batch.x.tanh();
      },
      replayed);
  for (int call = 0; call < 6; ++call) {
    const Batch batch{torch::randn({4})};
    EXPECT_TRUE(same_bits(of_struct(batch), batch.x.tanh()));
  }
  EXPECT_EQ(of_struct.explain().replayed_calls, 0);
  EXPECT_THAT(why(of_struct.explain()), HasSubstr("a type that cannot be compared"));
}

TEST(Replay, SharedMemoryOfArgumentsIsChecked) {
  const auto body = [](const at::Tensor& a, const at::Tensor& b) {
    a.add_(1);
    return a * b;
  };
  const auto compiled = compile(body, replayed);
  for (int call = 0; call < 6; ++call) compiled(torch::ones({3}), torch::ones({3}));
  ASSERT_EQ(compiled.explain().replayed_calls, 2) << compiled.explain().to_text();
  const at::Tensor both = torch::ones({3});
  EXPECT_EQ(compiled(both, both)[0].item<double>(), 4);
  EXPECT_THAT(why(compiled.explain()), HasSubstr("shares memory"));
}

TEST(Replay, NewMemoryOfAWeightIsFoundAtOnce) {
  nn::Sequential net = mlp();
  const auto body = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    return net->forward(x);
  };
  const auto compiled = compile(body, replayed);
  const at::Tensor x = torch::randn({5, 8});
  for (int call = 0; call < 6; ++call) compiled(x);
  ASSERT_EQ(compiled.explain().replayed_calls, 2) << compiled.explain().to_text();
  at::Tensor weight = net->parameters()[0];
  weight.set_data(torch::randn_like(weight));
  EXPECT_TRUE(same_bits(compiled(x), body(x)));
  EXPECT_THAT(why(compiled.explain()), HasSubstr("has new memory"));
  for (int call = 0; call < 6; ++call) EXPECT_TRUE(same_bits(compiled(x), body(x)));
  EXPECT_GT(compiled.explain().replayed_calls, 2) << "the new weight is used";
  {
    const at::NoGradGuard no_grad;
    weight.mul_(2);  // new values in the same memory
  }
  EXPECT_TRUE(same_bits(compiled(x), body(x)));
}

TEST(Replay, ATensorThatIsReleasedIsFoundAtOnce) {
  at::Tensor scale = torch::full({4}, 2.);
  const auto compiled = compile(
      [&](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        return x * scale;
      },
      replayed);
  const at::Tensor x = torch::ones({4});
  for (int call = 0; call < 6; ++call) compiled(x);
  ASSERT_EQ(compiled.explain().replayed_calls, 2) << compiled.explain().to_text();
  scale = torch::full({4}, 3.);
  EXPECT_EQ(compiled(x)[0].item<double>(), 3);
  EXPECT_THAT(why(compiled.explain()), HasSubstr("has been released"));
}

TEST(Replay, GradientsThatAreDroppedOutsideAreFoundAtOnce) {
  nn::Sequential net = mlp();
  const auto body = [&](const at::Tensor& x) { net->forward(x).square().sum().backward(); };
  const auto compiled = compile(body, replayed);
  const at::Tensor x = torch::randn({5, 8});
  for (int call = 0; call < 10; ++call) {
    net->zero_grad();
    compiled(x);
    const at::Tensor gradient = net->parameters()[0].grad();
    net->zero_grad();
    body(x);
    ASSERT_TRUE(gradient.defined());
    EXPECT_TRUE(same_bits(gradient, net->parameters()[0].grad())) << call;
  }
}

TEST(Replay, GradientsThatAccumulateAreReplayed) {
  nn::Sequential net = mlp(), eager = mlp();
  const auto body = [](nn::Sequential& of, const at::Tensor& x) { of->forward(x).square().sum().backward(); };
  const auto compiled = compile([&](const at::Tensor& x) { body(net, x); }, replayed);
  for (int call = 0; call < 10; ++call) {
    const at::Tensor x = torch::randn({5, 8});
    compiled(x);
    body(eager, x);
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_TRUE(same_bits(net->parameters()[i].grad(), eager->parameters()[i].grad())) << call << " " << i;
  }
  EXPECT_GT(compiled.explain().replayed_calls, 3) << compiled.explain().to_text();
}

TEST(Replay, AVerificationCallFindsAChangedFunction) {
  const CapturedLog log;
  bool doubles = false;
  const auto compiled = compile(
      [&](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        return doubles ? x * 2 : x.tanh();
      },
      {.exact = true, .replay = {.after = 2, .verify_every = 4}});
  const at::Tensor x = torch::randn({4});
  for (int call = 0; call < 3; ++call) compiled(x);
  doubles = true;
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(same_bits(compiled(x), x.tanh())) << "not yet found";
  for (int call = 0; call < 10; ++call) EXPECT_TRUE(same_bits(compiled(x), x * 2)) << call;
  const graph::Explanation said = compiled.explain();
  EXPECT_EQ(said.replay_stops, 1);
  EXPECT_GE(said.verified_calls, 2);
  EXPECT_GT(said.replayed_calls, 6) << "the changed function is replayed, too";
  EXPECT_THAT(why(said), HasSubstr("calls other operators than before"));
  EXPECT_THAT(log.text(), HasSubstr("a replayed function has changed, so the results of up to 3 calls"));
}

TEST(Replay, AChangedNumberIsFoundByAVerificationCall) {
  double factor = 2;
  const auto compiled = compile(
      [&](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        return x * factor;
      },
      {.exact = true, .replay = {.after = 2, .verify_every = 3}});
  const at::Tensor x = torch::ones({4});
  for (int call = 0; call < 3; ++call) compiled(x);
  factor = 3;
  EXPECT_EQ(compiled(x)[0].item<double>(), 2);
  EXPECT_EQ(compiled(x)[0].item<double>(), 2);
  for (int call = 0; call < 6; ++call) EXPECT_EQ(compiled(x)[0].item<double>(), 3);
}

TEST(Replay, NumbersThatChangeInEachCallAreRefused) {
  Training<torch::optim::Adam, torch::optim::AdamOptions> task(torch::optim::AdamOptions(0.01)),
      eager(torch::optim::AdamOptions(0.01));
  const auto step = compile([&](const at::Tensor& x, const at::Tensor& y) { return task.step(x, y); }, replayed);
  for (int call = 0; call < 10; ++call) {
    const at::Tensor x = torch::randn({6, 8}), y = torch::randn({6, 4});
    EXPECT_TRUE(same_bits(step(x, y), eager.step(x, y)));
  }
  const graph::Explanation said = step.explain();
  EXPECT_EQ(said.replayed_calls, 0);
  EXPECT_THAT(said.to_text(), HasSubstr("a number differs between calls"));
}

TEST(Replay, NumbersThatHostCodeWritesAreConstantsOrRefused) {
  double number = 1;
  const auto body = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    const at::Tensor filled = at::zeros({2}, at::kDouble), written = at::empty({2}, at::kDouble);
    filled.data_ptr<double>()[1] = number;
    for (int i = 0; i < 2; ++i) written.data_ptr<double>()[i] = number + i;
    return x * filled + written.mul_(2) + at::empty({2}, at::kDouble).fill_(5);
  };
  const auto compiled = compile(body, {.exact = true, .replay = {.after = 2, .verify_every = 1000}});
  const at::Tensor x = torch::ones({2}, at::kDouble);
  for (int call = 0; call < 12; ++call) {
    EXPECT_TRUE(same_bits(compiled(x), body(x))) << call;
    const auto noise = torch::randn({2}, at::kDouble);  // reuses freed memory
  }
  EXPECT_EQ(compiled.explain().replayed_calls, 9) << compiled.explain().to_text();
  const auto changing = compile(body, replayed);
  for (int call = 0; call < 12; ++call, ++number) EXPECT_TRUE(same_bits(changing(x), body(x))) << call;
  EXPECT_EQ(changing.explain().replayed_calls, 0);
  EXPECT_THAT(why(changing.explain()), HasSubstr("host code writes different numbers"));
}

TEST(Replay, HostCodeThatWritesTensorsBeforeOperatorsUseThemIsRefused) {
  const at::Tensor scale = torch::ones({2}), large = torch::ones({5000});
  for (const at::Tensor& captured : {scale, large}) {
    float number = 0;
    const auto compiled = compile(
        [&](const at::Tensor& x) {
          const at::NoGradGuard no_grad;
          captured.data_ptr<float>()[0] = ++number;
          return x * captured;
        },
        {.exact = true, .replay = {.after = 2, .verify_every = 3}});
    for (int call = 1; call < 10; ++call) EXPECT_EQ(compiled(torch::ones({captured.size(0)}))[0].item<double>(), call);
    EXPECT_EQ(compiled.explain().replayed_calls, 0);
    EXPECT_THAT(why(compiled.explain()), HasSubstr("host code of the function writes into a tensor"));
  }
  const auto of_argument = compile(
      [&](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        x.data_ptr<float>()[0] *= 2;
        return x + 1;
      },
      replayed);
  for (int call = 0; call < 6; ++call) EXPECT_EQ(of_argument(torch::ones({3}))[0].item<double>(), 3);
  EXPECT_EQ(of_argument.explain().replayed_calls, 0);
}

TEST(Replay, TensorsThatAreWrittenOutsideAreReadInReplays) {
  const at::Tensor rate = torch::ones({2});
  const auto compiled = compile(
      [&](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        return x * rate;
      },
      replayed);
  for (int call = 0; call < 8; ++call) {
    rate.data_ptr<float>()[0] = static_cast<float>(call);
    EXPECT_EQ(compiled(torch::ones({2}))[0].item<double>(), call);
  }
  EXPECT_EQ(compiled.explain().replayed_calls, 4) << compiled.explain().to_text();
}

TEST(Replay, ImmediateOperatorsRunAgain) {
  const at::Tensor noise = torch::zeros({4});
  const auto body = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    noise.normal_();
    const at::Tensor mask = at::empty_like(x * 2).bernoulli_(0.5);
    return std::pair<at::Tensor, std::vector<at::Tensor>>(x * noise * mask + torch::zeros({4}) + at::rand({4}),
                                                          {torch::full({2}, 3.), mask});
  };
  const auto compiled = compile(body, replayed);
  const at::Tensor x = torch::ones({4});
  std::vector<at::Tensor> all, expected;
  const auto run = [&](const auto& function, std::vector<at::Tensor>& results) {
    torch::manual_seed(3);
    for (int call = 0; call < 8; ++call) {
      auto [result, others] = function(x);
      results.push_back(result);
      for (const at::Tensor& other : others) results.push_back(other);
    }
    results.push_back(noise.clone());
  };
  run(body, expected);
  run(compiled, all);
  EXPECT_EQ(compiled.explain().replayed_calls, 4) << compiled.explain().to_text();
  ASSERT_EQ(all.size(), expected.size());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(all[i], expected[i])) << i;
}

TEST(Replay, FunctionsThatNeedValuesAreRefused) {
  const auto compiled = compile(
      [](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        const at::Tensor sum = x.sum();
        return sum.item<double>() > 0 ? x * 2 : x * 3;
      },
      replayed);
  for (int call = 0; call < 6; ++call) compiled(torch::ones({3}));
  EXPECT_EQ(compiled.explain().replayed_calls, 0);
  EXPECT_THAT(why(compiled.explain()), HasSubstr("is a barrier"));
  const auto guarded = compile(
      [](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        at::Tensor y;
        {
          const eager_guard guard;
          y = x * 2;
        }
        return y * 3;
      },
      replayed);
  for (int call = 0; call < 6; ++call) guarded(torch::ones({3}));
  EXPECT_EQ(guarded.explain().replayed_calls, 0);
  EXPECT_THAT(why(guarded.explain()), HasSubstr("eager_guard"));
}

TEST(Replay, ResultsThatRequireGradientsAreRefused) {
  nn::Sequential net = mlp();
  const auto compiled = compile([&](const at::Tensor& x) { return net->forward(x); }, replayed);
  for (int call = 0; call < 6; ++call) compiled(torch::randn({5, 8})).sum().backward();
  EXPECT_EQ(compiled.explain().replayed_calls, 0);
  EXPECT_THAT(why(compiled.explain()), HasSubstr("Return the result of detach() instead"));
}

TEST(Replay, ResultsThatTheFunctionKeepsAreRefused) {
  std::vector<at::Tensor> history;
  at::Tensor last;
  const auto keeps_all = compile(
      [&](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        history.push_back(x.tanh());
      },
      replayed);
  const auto keeps_and_returns = compile(
      [&](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        last = x.tanh();
        return last;
      },
      replayed);
  for (int call = 0; call < 8; ++call) {
    const at::Tensor x = torch::randn({4});
    keeps_all(x);
    EXPECT_TRUE(same_bits(history.back(), x.tanh()));
    EXPECT_TRUE(same_bits(keeps_and_returns(x), x.tanh()));
    EXPECT_TRUE(same_bits(last, x.tanh()));
  }
  EXPECT_EQ(keeps_all.explain().replayed_calls, 0);
  EXPECT_THAT(why(keeps_all.explain()), HasSubstr("a result of the previous call is still referenced"));
  EXPECT_EQ(keeps_and_returns.explain().replayed_calls, 0);
  EXPECT_THAT(why(keeps_and_returns.explain()), HasSubstr("also keeps a reference"));
}

TEST(Replay, AnAssignedTensorIsUpdatedInPlace) {
  at::Tensor last;
  const auto compiled = compile(
      [&](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        last = x.tanh();
        return last * 2;
      },
      replayed);
  for (int call = 0; call < 8; ++call) {
    const at::Tensor x = torch::randn({4});
    const at::Tensor result = compiled(x);
    EXPECT_TRUE(same_bits(result, x.tanh() * 2)) << call;
    EXPECT_TRUE(same_bits(last, x.tanh())) << call;
  }
  EXPECT_EQ(compiled.explain().replayed_calls, 4) << compiled.explain().to_text();
  last = at::Tensor();
  compiled(torch::randn({4}));
  EXPECT_TRUE(last.defined()) << "the function ran and set it again";
}

TEST(Replay, ResultsOfAllSupportedTypes) {
  const at::Tensor x = torch::randn({3, 4});
  const auto check = [&](const auto& body, const auto& flat) {
    const auto compiled = compile(body, replayed);
    for (int call = 0; call < 7; ++call) {
      const auto got = flat(compiled(x + call)), expected = flat(body(x + call));
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(same_bits(got[i], expected[i])) << call << " " << i;
        EXPECT_EQ(got[i].defined() ? got[i].strides() : at::IntArrayRef(),
                  expected[i].defined() ? expected[i].strides() : at::IntArrayRef());
      }
    }
    EXPECT_EQ(compiled.explain().replayed_calls, 3) << compiled.explain().to_text();
  };
  using List = std::vector<at::Tensor>;
  check([](const at::Tensor& y) { return y.tanh().t(); }, [](const at::Tensor& one) { return List{one}; });
  check([](const at::Tensor& y) { return List{y * 2, at::Tensor(), y + 1}; }, [](const List& list) { return list; });
  check(
      [](const at::Tensor& y) {
        return std::tuple(y * 2, List{y + 1, y - 1}, List{}, y.sin());
      },
      [](const auto& all) {
        const auto& [a, list, none, b] = all;
        EXPECT_TRUE(none.empty());
        return List{a, list.at(0), list.at(1), b};
      });
  check(
      [](const at::Tensor& y) {
        return std::array<at::Tensor, 2>{y * 2, y * 3};
      },
      [](const auto& all) {
        return List{all[0], all[1]};
      });
  const auto number = compile([](const at::Tensor& y) { return (y * 2).dim(); }, replayed);
  for (int call = 0; call < 6; ++call) EXPECT_EQ(number(x), 2);
  EXPECT_THAT(why(number.explain()), HasSubstr("does not consist of tensors"));
}

TEST(Replay, ReturnedTensorsThatShareMemoryDoSoInReplays) {
  const auto compiled = compile(
      [](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        const at::Tensor y = x.tanh();
        return std::tuple(y, y, y.view({2, 2}), x);
      },
      replayed);
  for (int call = 0; call < 7; ++call) {
    const at::Tensor x = torch::randn({4});
    const auto [a, b, view, argument] = compiled(x);
    EXPECT_TRUE(a.is_same(b));
    EXPECT_TRUE(argument.is_same(x));
    a.zero_();
    EXPECT_EQ(view.abs().sum().item<double>(), 0);
  }
  EXPECT_EQ(compiled.explain().replayed_calls, 3) << compiled.explain().to_text();
}

TEST(Replay, ModesOfTheCallerAreCompared) {
  const auto compiled = compile([](const at::Tensor& x) { return at::matmul(x, x).tanh(); }, replayed);
  const at::Tensor x = torch::randn({4, 4});
  for (int call = 0; call < 6; ++call) compiled(x);
  ASSERT_EQ(compiled.explain().replayed_calls, 2) << compiled.explain().to_text();
  const c10::InferenceMode inference;
  EXPECT_TRUE(compiled(x).is_inference());
}

TEST(Replay, ErrorsOfAReplayedProgram) {
  const at::Tensor weight = torch::randn({4, 2});
  at::Tensor kept;
  const auto compiled = compile(
      [&](const at::Tensor& rows) {
        const at::NoGradGuard no_grad;
        kept = at::embedding(weight, rows) + 1;
        return kept * 2;
      },
      replayed);
  const at::Tensor valid = torch::tensor({0, 3}), invalid = torch::tensor({0, 4});
  for (int call = 0; call < 6; ++call) compiled(valid);
  ASSERT_EQ(compiled.explain().replayed_calls, 2) << compiled.explain().to_text();
  EXPECT_ANY_THROW(compiled(invalid));
  EXPECT_EQ(compiled.explain().replayed_calls, 3);
  EXPECT_ANY_THROW(static_cast<void>(kept.const_data_ptr())) << "it has no value";
  EXPECT_THAT(compiled.explain().to_text(), HasSubstr("an operator failed"));
  const at::Tensor expected = (at::embedding(weight, valid) + 1) * 2;
  for (int call = 0; call < 6; ++call) EXPECT_TRUE(same_bits(compiled(valid), expected));
  EXPECT_EQ(compiled.explain().replayed_calls, 6);
}

TEST(Replay, AnExceptionOfTheFunctionInAVerificationCall) {
  bool throws = false;
  const auto compiled = compile(
      [&](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        if (throws) throw std::domain_error("the user's own");
        return x.tanh();
      },
      {.exact = true, .replay = {.after = 2, .verify_every = 3}});
  const at::Tensor x = torch::randn({4});
  for (int call = 0; call < 5; ++call) compiled(x);
  ASSERT_EQ(compiled.explain().replayed_calls, 2) << compiled.explain().to_text();
  throws = true;
  for (int call = 0; call < 3; ++call) EXPECT_THROW(compiled(x), std::domain_error);
  throws = false;
  for (int call = 0; call < 4; ++call) EXPECT_TRUE(same_bits(compiled(x), x.tanh()));
  EXPECT_EQ(compiled.explain().replayed_calls, 4) << compiled.explain().to_text();
}

/// A pending tensor may be turned in place, because each replay makes it anew. A weight stays turned for the next call.
TEST(Replay, SizesThatChangeInPlace) {
  const at::Tensor x = torch::randn({4, 3});
  const CompileOptions options{.exact = true, .replay = {.after = 2, .verify_every = 3}};
  const auto turn_result = [](const at::Tensor& each) {
    const at::NoGradGuard no_grad;
    const at::Tensor turned = each.tanh().t_();
    return std::vector<at::Tensor>{turned, turned.add(1).unsqueeze_(0)};
  };
  const auto turns = compile(turn_result, options);
  for (int call = 0; call < 8; ++call) {
    const auto results = turns(x), expected = turn_result(x);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bits(results[i], expected[i])) << i;
      EXPECT_EQ(results[i].strides(), expected[i].strides()) << i;
    }
  }
  EXPECT_GT(turns.explain().replayed_calls, 0) << turns.explain().to_text();

  const at::Tensor weight = torch::randn({3, 3}), other = weight.clone();
  const auto turn_weight = [](const at::Tensor& each, const at::Tensor& w) {
    const at::NoGradGuard no_grad;
    at::Tensor turned = w;
    return each.mm(turned.t_());
  };
  const auto weighs = compile([&](const at::Tensor& each) { return turn_weight(each, weight); }, options);
  for (int call = 0; call < 8; ++call) EXPECT_TRUE(same_bits(weighs(x), turn_weight(x, other))) << call;
  EXPECT_EQ(weighs.explain().replayed_calls, 0);
}

TEST(Replay, TwoThreads) {
  nn::Sequential net = mlp();
  const auto body = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    return net->forward(x);
  };
  const auto compiled = compile(body, {.exact = true, .replay = {.after = 2, .verify_every = 5}});
  std::vector<at::Tensor> inputs, expected;
  for (int i = 0; i < 400; ++i) {
    inputs.push_back(torch::randn({5, 8}));
    expected.push_back(body(inputs.back()));
  }
  std::atomic<int> wrong = 0;
  const auto run = [&](int first) {
    for (int i = first; i < first + 200; ++i) wrong += !same_bits(compiled(inputs[i]), expected[i]);
  };
  std::thread other(run, 200);
  run(0);
  other.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(compiled.explain().replayed_calls, 100) << compiled.explain().to_text();
}

TEST(Replay, OptionsAreChecked) {
  const auto body = [](const at::Tensor& x) { return x * 2; };
  EXPECT_THROW(compile(body, {.replay = {.after = 1}}), c10::ValueError);
  EXPECT_THROW(compile(body, {.replay = {.after = -1}}), c10::ValueError);
  EXPECT_THROW(compile(body, {.replay = {.after = 3, .verify_every = 1}}), c10::ValueError);
  EXPECT_THROW(compile(body, {.generate = false, .replay = {.after = 3}}), c10::ValueError);
}

TEST(Replay, ExplainSaysWhenItWouldHelp) {
  const auto body = [](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    at::Tensor sum = x;
    for (int i = 0; i < 300; ++i) sum = sum + x;
    return sum;
  };
  const auto compiled = compile(body, {.exact = true});
  for (int call = 0; call < 5; ++call) compiled(torch::ones({4}));
  EXPECT_THAT(compiled.explain().to_text(), HasSubstr("the option replay"));
  const auto with_replay = compile(body, replayed);
  for (int call = 0; call < 5; ++call) with_replay(torch::ones({4}));
  EXPECT_THAT(with_replay.explain().to_text(), Not(HasSubstr("the option replay")));
}

}  // namespace
}  // namespace bellows::compile_detail::testing
