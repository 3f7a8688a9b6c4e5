#include "bellows/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace bellows::amp {

namespace {

bool on() {
  return at::autocast::is_autocast_enabled(at::kCPU);
}

/// Casts of tensors of `numel` elements while `action` runs.
int count_casts(const std::function<void()>& action, int64_t numel) {
  static int64_t wanted;
  static int casts;
  wanted = numel;
  casts = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
        if (std::string_view(f.name()) == "aten::_to_copy" && f.inputs()[0].toTensor().numel() == wanted) ++casts;
        return nullptr;
      })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  action();
  at::removeCallback(handle);
  return casts;
}

}  // namespace

TEST(Autocast, ChoosesTheDtypeByOperator) {
  const at::Tensor a = torch::randn({4, 4}), b = torch::randn({4, 4});
  const autocast guard(at::kCPU, at::kBFloat16);
  const at::Tensor product = a.mm(b);
  EXPECT_EQ(product.scalar_type(), at::kBFloat16);
  EXPECT_EQ(torch::mse_loss(product, a).scalar_type(), at::kFloat);
  EXPECT_EQ((a + b).scalar_type(), at::kFloat);
}

TEST(Autocast, NestsAndPutsEverythingBack) {
  const auto dtype_before = at::autocast::get_autocast_dtype(at::kCPU);
  {
    const autocast outer(at::kCPU, at::kBFloat16);
    EXPECT_TRUE(on());
    {
      const autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
    }
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
    {
      const autocast off(at::kCPU, at::kBFloat16, false, false);
      EXPECT_FALSE(on());
      EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
      EXPECT_EQ(torch::ones({2, 2}).mm(torch::ones({2, 2})).scalar_type(), at::kFloat);
    }
    EXPECT_TRUE(on());
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  }
  EXPECT_FALSE(on());
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), dtype_before);
}

TEST(Autocast, PutsBackWhenAnExceptionPassesThrough) {
  EXPECT_THROW(
      {
        const autocast guard(at::kCPU, at::kBFloat16);
        throw std::runtime_error("on the way");
      },
      std::runtime_error);
  EXPECT_FALSE(on());
}

TEST(Autocast, DisabledIsBitForBitPlain) {
  const at::Tensor x = torch::randn({8, 16}), w = torch::randn({4, 16}, torch::requires_grad());
  const at::Tensor plain = torch::linear(x, w);
  const autocast guard(at::kCPU, at::kBFloat16, false);
  EXPECT_TRUE(torch::equal(torch::linear(x, w), plain));
}

TEST(Autocast, WeightsAreCastOnceWithinTheOutermostGuard) {
  const at::Tensor x = torch::randn({2, 16}), w = torch::randn({5, 16}, torch::requires_grad());
  const auto three_calls = [&](bool cache) {
    return count_casts(
        [&] {
          const autocast guard(at::kCPU, at::kBFloat16, true, cache);
          for (int i = 0; i < 3; ++i) {
            const autocast inner(at::kCPU, at::kBFloat16, true, cache);
            torch::linear(x, w);
          }
        },
        w.numel());
  };
  EXPECT_EQ(three_calls(true), 1);
  EXPECT_EQ(three_calls(false), 3);
}

TEST(Autocast, TheNextStepSeesTheNewWeights) {
  const at::Tensor x = torch::ones({1, 2});
  at::Tensor w = torch::ones({1, 2}, torch::requires_grad());
  const auto output = [&] {
    const autocast guard(at::kCPU, at::kBFloat16);
    return torch::linear(x, w).item<float>();
  };
  EXPECT_EQ(output(), 2);
  {
    const c10::NoGradGuard no_grad;
    w.mul_(3);
  }
  EXPECT_EQ(output(), 6);
}

TEST(Autocast, GradientsArriveInTheWeightsDtype) {
  at::Tensor w = torch::randn({3, 4}, torch::requires_grad());
  at::Tensor loss;
  {
    const autocast guard(at::kCPU, at::kBFloat16);
    loss = torch::linear(torch::randn({2, 4}), w).sum();
  }
  loss.backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
}

TEST(Autocast, OtherDtypesAreRefused) {
  EXPECT_THROW(autocast(at::kCPU, at::kFloat), c10::ValueError);
  EXPECT_FALSE(on());
}

}  // namespace bellows::amp
