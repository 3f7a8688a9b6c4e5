#include "support.h"

#include <gmock/gmock.h>
#include <torch/script.h>

namespace bellows::tap::testing {
namespace {

/// All taps at once.
struct AllTaps {
  std::shared_ptr<NotingObserver> observer = std::make_shared<NotingObserver>(ObserverNeeds{.backward_nodes = true});
  std::shared_ptr<NotingCheck> check = std::make_shared<NotingCheck>();
  std::shared_ptr<NotingTap> tap = std::make_shared<NotingTap>();
  std::shared_ptr<CopyingTap> saved = std::make_shared<CopyingTap>();
  ObserverGuard observer_guard{observer};
  OpCheckGuard check_guard{check};
  OpTapGuard tap_guard{tap};
  SavedTensorGuard saved_guard{saved};
};

TEST(Traps, ReentrantBackwardReachesAutogradsWorkerThreads) {
  const auto plain = reentrant_gradient();
  AllTaps all;
  EXPECT_TRUE(at::equal(plain, reentrant_gradient()));
  EXPECT_GT(all.observer->thread_count(), 1u);
  EXPECT_GT(all.check->thread_count(), 1u);
  EXPECT_GT(all.tap->thread_count(), 1u);
  EXPECT_GT(all.saved->thread_count(), 1u);
  EXPECT_EQ(all.saved->size(), 151u);
  EXPECT_EQ(all.observer->count("ExpBackward0"), 151u);
}

TEST(Traps, WorkersForgetTheTapsAfterwards) {
  auto tap = std::make_shared<NotingTap>();
  auto observer = std::make_shared<NotingObserver>();
  {
    OpTapGuard guard(tap);
    ObserverGuard watch(observer);
    reentrant_gradient();
  }
  const size_t seen = tap->size(), observed = observer->size();
  reentrant_gradient();
  EXPECT_EQ(tap->size(), seen);
  EXPECT_EQ(observer->size(), observed);
}

TEST(Traps, AllTapsTogetherChangeNoBits) {
  const auto plain = conv_step();
  AllTaps all;
  EXPECT_TRUE(same_bits(plain, conv_step()));
  EXPECT_TRUE(all.tap->has("aten::convolution_backward"));
}

void use_all() {
  auto x = torch::ones({2}, torch::requires_grad());
  x.exp().sum().backward();
}

TEST(Traps, AUsersThreadSeesNothingByItselfAndAllWithTheContext) {
  AllTaps all;
  std::thread(use_all).join();
  EXPECT_EQ(all.tap->size() + all.observer->size() + all.check->size() + all.saved->size(), 0u);
  tap::thread(use_all).join();
  EXPECT_TRUE(all.tap->has("aten::exp"));
  EXPECT_TRUE(all.observer->has("aten::exp"));
  EXPECT_TRUE(all.observer->has("ExpBackward0"));
  EXPECT_TRUE(all.check->has("aten::exp"));
  EXPECT_EQ(all.saved->size(), 1u);
}

TEST(Traps, ContextIsTakenOffAndOutlivesTheGuardsHarmlessly) {
  auto tap = std::make_shared<NotingTap>();
  auto observer = std::make_shared<NotingObserver>();
  auto saved = std::make_shared<CopyingTap>();
  Context context;
  {
    OpTapGuard a(tap);
    ObserverGuard b(observer);
    SavedTensorGuard c(saved);
    context = Context::capture();
  }
  std::thread([&] {
    {
      ContextGuard guard(context);
      use_all();
    }
    use_all();
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
  }).join();
  EXPECT_EQ(tap->size() + observer->size() + saved->size(), 0u);
}

TEST(Traps, ContextCarriesGradMode) {
  Context context;
  {
    torch::NoGradGuard no_grad;
    context = Context::capture();
  }
  EXPECT_TRUE(at::GradMode::is_enabled());
  ContextGuard guard(context);
  EXPECT_FALSE(at::GradMode::is_enabled());
}

TEST(Traps, GuardsOnACarriedThreadNestOnThoseItBrought) {
  auto outer = std::make_shared<NotingObserver>(), inner = std::make_shared<NotingObserver>();
  auto outer_tap = std::make_shared<NotingTap>(), inner_tap = std::make_shared<NotingTap>();
  ObserverGuard a(outer);
  OpTapGuard b(outer_tap);
  const auto x = torch::ones({2});
  tap::thread([&] {
    {
      ObserverGuard c(inner);
      OpTapGuard d(inner_tap);
      x.neg();
    }
    x.abs();
  }).join();
  EXPECT_THAT(inner->names, ::testing::ElementsAre("aten::neg"));
  EXPECT_THAT(inner_tap->names, ::testing::ElementsAre("aten::neg"));
  EXPECT_EQ(outer->count("aten::neg"), 1u);
  EXPECT_FALSE(outer->has("PythonDispatchMode"));
  EXPECT_EQ(outer->count("aten::abs"), 1u);
  EXPECT_TRUE(outer_tap->has("aten::abs"));
}

TEST(Traps, ManyThreadsShareClients) {
  AllTaps all;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.push_back(tap::thread([] {
      for (int k = 0; k < 20; ++k) use_all();
    }));
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(all.tap->count("aten::exp"), 80u);
  EXPECT_EQ(all.saved->size(), 80u);
}

TEST(Traps, TorchScriptModules) {
  torch::jit::Module module("m");
  module.register_parameter("w", torch::full({2, 2}, 0.5), false);
  module.define(R"(
    def forward(self, x):
      y = torch.mm(x, self.w)
      for i in range(3):
        y = torch.tanh(y) + y
      return y
  )");
  auto x = torch::ones({2, 2}, torch::requires_grad());
  auto run = [&] {
    std::vector<at::Tensor> results;
    for (int i = 0; i < 4; ++i) {  // the profiling executor optimises from the third run on
      x.mutable_grad() = at::Tensor();
      auto y = module.forward({x}).toTensor();
      y.sum().backward();
      results.insert(results.end(), {y.detach(), x.grad().clone()});
    }
    return results;
  };
  run();
  const auto plain = run();
  AllTaps all;
  EXPECT_TRUE(same_bits(plain, run()));
  EXPECT_TRUE(all.tap->has("aten::tanh"));
  EXPECT_TRUE(all.observer->has("aten::tanh"));
  EXPECT_TRUE(all.check->has("aten::tanh"));
  EXPECT_GT(all.saved->size(), 0u);
}

TEST(Traps, ViewsAndInPlaceUnderGradient) {
  auto run = [] {
    auto x = torch::arange(6, at::kFloat).view({2, 3}).requires_grad_();
    auto y = x * 2;
    auto row = y.select(0, 1);
    row.mul_(3);
    y.t().add_(1);
    y.diagonal().mul_(0.5).exp_();
    y.sum().backward();
    return std::vector<at::Tensor>{y.detach(), x.grad()};
  };
  const auto plain = run();
  AllTaps all;
  EXPECT_TRUE(same_bits(plain, run()));
}

TEST(Traps, InferenceMode) {
  const auto x = torch::rand({4, 4}), w = torch::rand({4, 4});
  auto run = [&] {
    c10::InferenceMode inference;
    return std::vector<at::Tensor>{
        at::scaled_dot_product_attention(x.view({1, 1, 4, 4}), w.view({1, 1, 4, 4}), x.view({1, 1, 4, 4})),
        at::dropout(at::matmul(x, w), 0.5, false)};
  };
  const auto plain = run();
  AllTaps all;
  EXPECT_TRUE(same_bits(plain, run()));
  EXPECT_TRUE(all.tap->has("aten::matmul"));
  EXPECT_TRUE(all.tap->has("aten::scaled_dot_product_attention"));
  EXPECT_EQ(all.saved->size(), 0u);
}

TEST(Traps, AutocastWithBackward) {
  auto run = [] {
    torch::manual_seed(3);
    auto linear = torch::nn::Linear(8, 8);
    const auto x = torch::randn({4, 8});
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const auto loss = linear(x).relu().sum();
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    loss.backward();
    return std::vector<at::Tensor>{loss.detach(), linear->weight.grad(), linear->bias.grad()};
  };
  const auto plain = run();
  AllTaps all;
  EXPECT_TRUE(same_bits(plain, run()));
  EXPECT_TRUE(all.tap->has("aten::_to_copy"));
}

TEST(Traps, ExceptionOfAKernelUnderAllTaps) {
  const auto a = torch::ones({2, 3});
  AllTaps all;
  for (int i = 0; i < 3; ++i) EXPECT_THROW(at::mm(a, a), c10::Error);
  all.tap->names.clear();
  a.neg();
  EXPECT_EQ(all.tap->count("aten::neg"), 1u);
}

}  // namespace
}  // namespace bellows::tap::testing
