#include "bellows/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/amp/grad_scaler.h"
#include "bellows/tap/half_operators.h"
#include "bellows/tap/observer.h"

namespace bellows::amp {

namespace {

bool on() {
  return at::autocast::is_autocast_enabled(at::kCPU);
}

/// Counts casts of tensors with `numel` elements.
class CountCasts final : public tap::Observer {
 public:
  explicit CountCasts(int64_t numel) : numel_(numel) {}
  tap::ObserverNeeds needs() const override { return {.inputs = true}; }
  void before(const tap::OpEvent& op) override {
    if (op.name == "aten::_to_copy" && op.inputs[0].toTensor().numel() == numel_) ++casts;
  }
  int casts = 0;

 private:
  int64_t numel_;
};

int count_casts(const std::function<void()>& action, int64_t numel) {
  const auto counter = std::make_shared<CountCasts>(numel);
  const tap::ObserverGuard guard(counter);
  action();
  return counter->casts;
}

}  // namespace

TEST(Autocast, ChoosesTheDtypeByOperator) {
  const at::Tensor a = torch::randn({4, 4}), b = torch::randn({4, 4});
  const AutocastGuard guard(at::kCPU, at::kBFloat16);
  const at::Tensor product = a.mm(b);
  EXPECT_EQ(product.scalar_type(), at::kBFloat16);
  EXPECT_EQ(torch::mse_loss(product, a).scalar_type(), at::kFloat);
  EXPECT_EQ((a + b).scalar_type(), at::kFloat);
}

TEST(Autocast, NestsAndPutsEverythingBack) {
  const auto dtype_before = at::autocast::get_autocast_dtype(at::kCPU);
  {
    const AutocastGuard outer(at::kCPU, at::kBFloat16);
    EXPECT_TRUE(on());
    {
      const AutocastGuard inner(at::kCPU, at::kHalf);
      EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
    }
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
    {
      const AutocastGuard off(at::kCPU, at::kBFloat16, false, false);
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
        const AutocastGuard guard(at::kCPU, at::kBFloat16);
        throw std::runtime_error("on the way");
      },
      std::runtime_error);
  EXPECT_FALSE(on());
}

TEST(Autocast, DisabledIsBitForBitPlain) {
  const at::Tensor x = torch::randn({8, 16}), w = torch::randn({4, 16}, torch::requires_grad());
  const at::Tensor plain = torch::linear(x, w);
  const AutocastGuard guard(at::kCPU, at::kBFloat16, false);
  EXPECT_TRUE(torch::equal(torch::linear(x, w), plain));
}

TEST(Autocast, WeightsAreCastOnceWithinTheOutermostGuard) {
  const at::Tensor x = torch::randn({2, 16}), w = torch::randn({5, 16}, torch::requires_grad());
  const auto three_calls = [&](bool cache) {
    return count_casts(
        [&] {
          const AutocastGuard guard(at::kCPU, at::kBFloat16, true, cache);
          for (int i = 0; i < 3; ++i) {
            const AutocastGuard inner(at::kCPU, at::kBFloat16, true, cache);
            torch::linear(x, w);
          }
        },
        w.numel());
  };
  EXPECT_EQ(three_calls(true), 1);
  EXPECT_EQ(three_calls(false), 3);
}

TEST(Autocast, LinearModulesCastTheirWeightOncePerStep) {
  torch::nn::Linear linear(16, 5), without_bias(torch::nn::LinearOptions(16, 5).bias(false));
  const at::Tensor rows = torch::randn({2, 16}), sequences = torch::randn({2, 3, 16});
  for (auto [module, input] : {std::pair(linear, rows), {linear, sequences}, {without_bias, rows}}) {
    const auto three_calls = [m = module.get(), x = input](bool cache) {
      return count_casts(
          [&] {
            const AutocastGuard guard(at::kCPU, at::kBFloat16, true, cache);
            for (int i = 0; i < 3; ++i) m->forward(x);
          },
          80);
    };
    EXPECT_EQ(three_calls(true), 1);
    EXPECT_EQ(three_calls(false), 3);
  }
}

TEST(Autocast, SeveralForwardAndBackwardPassesShareOneCast) {
  torch::nn::Linear linear(16, 5);
  const auto accumulate = [&] {
    const AutocastGuard step(at::kCPU, at::kBFloat16, false);
    for (int i = 0; i < 4; ++i) {
      at::Tensor loss;
      {
        const AutocastGuard guard(at::kCPU, at::kBFloat16);
        loss = linear->forward(torch::ones({2, 16})).sum();
      }
      loss.backward();
    }
  };
  EXPECT_EQ(count_casts(accumulate, 80) - 4, 1);  // four gradients come back to fp32
  EXPECT_TRUE(torch::equal(linear->weight.grad(), torch::full({5, 16}, 8)));
}

TEST(Autocast, TransposedWeightsGiveTheResultsAndGradientsOfTheirCast) {
  torch::manual_seed(0);
  torch::nn::Linear linear(16, 6);
  const at::Tensor x = torch::randn({4, 16});
  const auto run = [&](bool cache, bool rows) {
    linear->zero_grad();
    at::Tensor y;
    {
      const AutocastGuard guard(at::kCPU, at::kBFloat16, true, cache);
      y = rows ? x.matmul(linear->weight.slice(0, 2, 5).t()) : linear->forward(x);
    }
    y.to(at::kFloat).pow(2).sum().backward();
    return std::pair(y.detach(), linear->weight.grad().clone());
  };
  for (const bool rows : {false, true}) {
    const auto [cached, cached_grad] = run(true, rows);
    const auto [plain, plain_grad] = run(false, rows);
    EXPECT_TRUE(torch::equal(cached, plain));
    EXPECT_TRUE(torch::equal(cached_grad, plain_grad));
  }
}

TEST(Autocast, ViewsThatAreNoTransposedWeightsAreLeftToLibtorch) {
  const at::Tensor w = torch::randn({6, 6}, torch::requires_grad()), x = torch::randn({2, 3});
  const auto product = [&](const at::Tensor& view) {
    const AutocastGuard guard(at::kCPU, at::kBFloat16);
    return x.mm(view);
  };
  for (const at::Tensor& view : {w.slice(1, 2, 5).t(), w.slice(0, 1, 4), w.t().slice(0, 0, 3), w.slice(0, 0, 6, 2)}) {
    EXPECT_TRUE(torch::equal(product(view), x.to(at::kBFloat16).mm(view.to(at::kBFloat16))));
  }
  const at::Tensor frozen = torch::randn({4, 3});
  EXPECT_TRUE(torch::equal(product(frozen.t()), x.to(at::kBFloat16).mm(frozen.t().to(at::kBFloat16))));
}

TEST(Autocast, APassWithoutGraphDoesNotTakeTheGradientFromTheNext) {
  torch::nn::Linear linear(4, 3);
  const AutocastGuard guard(at::kCPU, at::kBFloat16);
  {
    const c10::NoGradGuard no_grad;
    linear->forward(torch::ones({2, 4}));
  }
  linear->forward(torch::ones({2, 4})).sum().backward();
  EXPECT_TRUE(linear->weight.grad().defined());
}

TEST(Autocast, AGuardOfTheOtherDtypeDoesNotSeeTheFirstOnesCasts) {
  const at::Tensor x = torch::ones({2, 4}), w = torch::ones({3, 4}, torch::requires_grad());
  const AutocastGuard outer(at::kCPU, at::kBFloat16);
  EXPECT_EQ(torch::linear(x, w).scalar_type(), at::kBFloat16);
  {
    const AutocastGuard inner(at::kCPU, at::kHalf);
    EXPECT_EQ(torch::linear(x, w).scalar_type(), at::kHalf);
  }
  EXPECT_EQ(torch::linear(x, w).scalar_type(), at::kBFloat16);
}

TEST(Autocast, TheNextStepSeesTheNewWeights) {
  const at::Tensor x = torch::ones({1, 2});
  at::Tensor w = torch::ones({1, 2}, torch::requires_grad());
  const auto output = [&] {
    const AutocastGuard guard(at::kCPU, at::kBFloat16);
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
    const AutocastGuard guard(at::kCPU, at::kBFloat16);
    loss = torch::linear(torch::randn({2, 4}), w).sum();
  }
  loss.backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
}

TEST(Autocast, OtherDtypesAreRefused) {
  EXPECT_THROW(AutocastGuard(at::kCPU, at::kFloat), c10::ValueError);
  EXPECT_FALSE(on());
}

/// Fp16 matmuls run in fp32, as on a processor whose fp16 kernels are slow.
class SlowHalf : public ::testing::TestWithParam<bool> {
 protected:
  SlowHalf() { tap::set_half_features(tap::HalfFeatures{.onednn = GetParam()}); }
  ~SlowHalf() override { tap::set_half_features({}); }
};

TEST_P(SlowHalf, OverflowOfAGradientSkipsTheStep) {
  const at::Tensor weight = torch::ones({64, 64}).requires_grad_(), x = torch::full({64, 64}, 2.);
  torch::optim::SGD optimizer(std::vector<at::Tensor>{weight}, torch::optim::SGDOptions(1e-3));
  GradScaler scaler({.init_scale = 1024});
  std::vector<bool> stepped;
  for (int step = 0; step < 4; ++step) {
    const at::Tensor before = weight.detach().clone();
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const AutocastGuard guard(at::kCPU, at::kHalf);
      loss = x.mm(weight).to(at::kFloat).sum();
    }
    scaler.scale(loss).backward();  // each gradient is 64 · 2 · scale; fp16 ends at 65504
    scaler.step(optimizer);
    scaler.update();
    stepped.push_back(!weight.equal(before));
  }
  EXPECT_EQ(stepped, (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(scaler.get_scale(), 256);
  EXPECT_TRUE(weight.isfinite().all().item<bool>());
}

TEST_P(SlowHalf, OverflowInForwardGivesInfinity) {
  const AutocastGuard guard(at::kCPU, at::kHalf);
  const at::Tensor image = torch::full({1, 64, 4, 4}, 64.), weight = torch::full({8, 64, 1, 1}, 16.);
  EXPECT_TRUE(at::conv2d(image, weight).isinf().all().item<bool>());  // 65536
  EXPECT_TRUE(at::conv2d(image, weight * 0.5).eq(32768).all().item<bool>());
  EXPECT_TRUE(at::linear(torch::full({8, 64}, -64.), torch::full({4, 64}, 16.)).isinf().all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Features, SlowHalf, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "Onednn" : "Converted"); });

TEST(Autocast, HalfMatmulsAndConvolutionsConvertOnlyUnderAGuardOfHalf) {
  tap::set_half_features(tap::HalfFeatures{.onednn = false});
  const at::Tensor x = torch::ones({4, 4}), half = x.to(at::kHalf);
  const auto converted = [&](at::ScalarType dtype, bool enabled) {
    const AutocastGuard guard(at::kCPU, dtype, enabled);
    const int64_t before = tap::FastHalfGuard::converted();
    x.mm(x);
    half.mm(half);
    return tap::FastHalfGuard::converted() - before;
  };
  EXPECT_EQ(converted(at::kHalf, true), 2);
  EXPECT_EQ(converted(at::kHalf, false), 0);
  EXPECT_EQ(converted(at::kBFloat16, true), 0);
  tap::set_half_features({});
}

}  // namespace bellows::amp
