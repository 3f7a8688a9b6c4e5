#include "bellows/nn/loss.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/nn/gradcheck.h"
#include "tests/support/errors.h"

namespace bellows::nn {

namespace {

using testing::HasSubstr;

}  // namespace

TEST(Loss, FocalWithoutFocusIsCrossEntropy) {
  at::manual_seed(1);
  const at::Tensor x = torch::randn({4, 5, 3}, at::kDouble), weight = torch::rand({5}, at::kDouble) + 0.1;
  at::Tensor target = torch::randint(5, {4, 3}, at::kLong);
  target[1][2] = 7;  // ignored
  for (const double smoothing : {0.0, 0.2}) {
    for (const auto& [reduction, aten] :
         {std::pair(Reduction::mean, at::Reduction::Mean), std::pair(Reduction::sum, at::Reduction::Sum),
          std::pair(Reduction::none, at::Reduction::None)}) {
      const at::Tensor reference = at::cross_entropy_loss(x, target, weight, aten, /*ignore_index=*/7, smoothing);
      const at::Tensor focal = focal_loss(
          x, target,
          {.gamma = 0, .weight = weight, .label_smoothing = smoothing, .ignore_index = 7, .reduction = reduction});
      const at::Tensor nll =
          nn::nll_loss(at::log_softmax(x, 1), target,
                       {.weight = weight, .label_smoothing = smoothing, .ignore_index = 7, .reduction = reduction});
      EXPECT_TRUE(at::allclose(focal, reference, 1e-12, 1e-12));
      EXPECT_TRUE(at::allclose(nll, reference, 1e-12, 1e-12));
    }
  }
}

TEST(Loss, GradientsAgreeWithFiniteDifferences) {
  at::manual_seed(2);
  const at::Tensor x = torch::randn({3, 4}, at::kDouble), dense = torch::rand({3, 4}, at::kDouble);
  const at::Tensor target = torch::tensor({0, 3, 1});
  EXPECT_TRUE(gradcheck([&](const GradcheckInputs& t) { return focal_loss(t[0], target, {.gamma = 0.5}); }, {x}));
  EXPECT_TRUE(gradcheck(
      [&](const GradcheckInputs& t) { return focal_loss(t[0], target, {.gamma = 2, .label_smoothing = 0.1}); }, {x}));
  EXPECT_TRUE(
      gradcheck([&](const GradcheckInputs& t) { return sigmoid_focal_loss(t[0], dense, {.gamma = 0.7}); }, {x}));
  EXPECT_TRUE(gradcheck([&](const GradcheckInputs& t) { return asymmetric_loss(t[0], dense); }, {x}));
  EXPECT_TRUE(gradcheck(
      [&](const GradcheckInputs& t) {
        return nn::nll_loss(at::log_softmax(t[0], 1), target, {.label_smoothing = 0.1});
      },
      {x}));
  EXPECT_TRUE(gradcheck(
      [&](const GradcheckInputs& t) { return soft_target_kl_div(t[0], dense.softmax(1), {.label_smoothing = 0.1}); },
      {x}));
}

TEST(Loss, CertainAnswersHaveFiniteGradients) {
  const at::Tensor x = torch::tensor({{100.0, -100.0}, {-100.0, 100.0}}).requires_grad_();
  const at::Tensor index = torch::tensor({0, 1}), dense = torch::eye(2);
  for (const double gamma : {0.0, 0.5, 1.0, 2.0}) {
    for (const at::Tensor& loss : {focal_loss(x, index, {.gamma = gamma}),
                                   sigmoid_focal_loss(x, dense, {.gamma = gamma, .reduction = Reduction::mean}),
                                   asymmetric_loss(x, dense, {.gamma_neg = gamma, .gamma_pos = gamma})}) {
      EXPECT_NEAR(loss.item<double>(), 0, 1e-4) << gamma;
      EXPECT_TRUE(at::isfinite(torch::autograd::grad({loss}, {x})[0]).all().item<bool>()) << gamma;
    }
  }
}

TEST(Loss, IgnoredTargetsGetNoGradientEvenFromInfiniteLogits) {
  const at::Tensor x = torch::tensor({{1.0, 2.0, 3.0}, {HUGE_VAL, -HUGE_VAL, 0.0}}).requires_grad_();
  const at::Tensor loss = focal_loss(x, torch::tensor({2, -100}), {.gamma = 1});
  EXPECT_TRUE(std::isfinite(loss.item<double>()));
}

TEST(Loss, AllTargetsIgnoredIsNanAsInTorch) {
  const at::Tensor x = torch::randn({2, 3}), target = torch::full({2}, -100, at::kLong);
  EXPECT_TRUE(std::isnan(focal_loss(x, target).item<double>()));
  EXPECT_TRUE(std::isnan(nn::nll_loss(at::log_softmax(x, 1), target, {.label_smoothing = 0.1}).item<double>()));
}

TEST(Loss, ClassDimAloneIsOneSample) {
  const at::Tensor x = torch::randn({5}, at::kDouble), target = torch::tensor(3);
  const at::Tensor reference = at::cross_entropy_loss(x, target, {}, at::Reduction::Mean, -100, 0.1);
  EXPECT_TRUE(at::allclose(focal_loss(x, target, {.gamma = 0, .label_smoothing = 0.1}), reference));
  EXPECT_TRUE(at::allclose(nn::nll_loss(at::log_softmax(x, 0), target, {.label_smoothing = 0.1}), reference));
  EXPECT_TRUE(at::allclose(soft_target_cross_entropy(x, smooth_one_hot(target.view({1}), 5)[0].to(at::kDouble)),
                           at::cross_entropy_loss(x, target)));
}

TEST(Loss, LowPrecisionLogitsAreComputedInFp32) {
  at::manual_seed(3);
  const at::Tensor x = torch::randn({64, 10}).to(at::kBFloat16), dense = torch::rand({64, 10});
  const at::Tensor target = torch::randint(10, {64}, at::kLong), wide = x.to(at::kFloat);
  for (const auto& loss : std::vector<std::function<at::Tensor(const at::Tensor&)>>{
           [&](const at::Tensor& t) { return focal_loss(t, target); },
           [&](const at::Tensor& t) { return sigmoid_focal_loss(t, dense.to(t.scalar_type())).mean(); },
           [&](const at::Tensor& t) {
             return nn::binary_cross_entropy_with_logits(t, target, {.label_smoothing = 0.1});
           },
           [&](const at::Tensor& t) { return soft_target_cross_entropy(t, dense.softmax(1)); }}) {
    const at::Tensor low = loss(x);
    EXPECT_EQ(low.scalar_type(), at::kFloat);
    EXPECT_NEAR(low.item<double>(), loss(wide).item<double>(), 2e-3);
  }
}

TEST(Loss, RefuseTargetsThatDoNotFit) {
  const at::Tensor x = torch::randn({4, 3}), target = torch::tensor({0, 1, 2, 0});
  EXPECT_THAT(message_of([&] { focal_loss(x, target.to(at::kInt)); }),
              HasSubstr("focal_loss: expected class indices, int64 [4] for logits of [4, 3], got Int [4]"));
  EXPECT_THAT(message_of([&] { nn::nll_loss(x, torch::tensor({0, 1})); }), HasSubstr("int64 [4]"));
  EXPECT_THAT(message_of([&] { soft_target_cross_entropy(x, target); }), HasSubstr("smooth_one_hot()"));
  EXPECT_THAT(message_of([&] { sigmoid_focal_loss(x, torch::rand({3, 4})); }), HasSubstr("shape [4, 3], got Float [3"));
  EXPECT_THAT(message_of([&] {
                nn::binary_cross_entropy_with_logits(x, torch::tensor({0, 1}));
              }),
              HasSubstr("got Long [2]"));
  EXPECT_THAT(message_of([&] { asymmetric_loss(at::Tensor(), x); }), HasSubstr("got an undefined tensor"));
  EXPECT_THAT(message_of([&] { focal_loss(target, target); }), HasSubstr("expected floating-point logits"));
  EXPECT_THAT(message_of([&] { smooth_one_hot(x, 3); }), HasSubstr("labels [N, …] of int64"));
  EXPECT_ANY_THROW(smooth_one_hot(target, 2));                   // label 2 of two classes
  EXPECT_ANY_THROW(focal_loss(x, torch::tensor({0, 1, 2, 3})));  // index out of range
}

TEST(Loss, RefuseOptionsOutOfRange) {
  const at::Tensor x = torch::randn({4, 3}), target = torch::tensor({0, 1, 2, 0}), dense = torch::rand({4, 3});
  const double nan = std::nan("");
  EXPECT_THAT(message_of([&] { nn::nll_loss(x, target, {.label_smoothing = 1.5}); }),
              HasSubstr("nll_loss: expected label_smoothing in [0, 1], got 1.5"));
  EXPECT_THROW(soft_target_kl_div(x, dense, {.label_smoothing = nan}), c10::ValueError);
  EXPECT_THROW(focal_loss(x, target, {.gamma = -1}), c10::ValueError);
  EXPECT_THROW(sigmoid_focal_loss(x, dense, {.gamma = nan}), c10::ValueError);
  EXPECT_THAT(message_of([&] { sigmoid_focal_loss(x, dense, {.alpha = 2}); }), HasSubstr("alpha in [0, 1], or -1"));
  EXPECT_THROW(asymmetric_loss(x, dense, {.clip = 1}), c10::ValueError);
  EXPECT_THROW(asymmetric_loss(x, dense, {.eps = 0}), c10::ValueError);
  EXPECT_THROW(smooth_one_hot(target, 0), c10::ValueError);
  EXPECT_THROW(smooth_one_hot(target, 3, 0, at::kLong), c10::ValueError);
}

TEST(Loss, RefuseWeightsThatDoNotFit) {
  const at::Tensor x = torch::randn({4, 3}), target = torch::tensor({0, 1, 2, 0}), dense = torch::rand({4, 3});
  EXPECT_THAT(message_of([&] { focal_loss(x, target, {.weight = torch::ones({4})}); }),
              HasSubstr("a weight for each of the 3 classes, floating-point [3], got Float [4]"));
  EXPECT_THROW(nn::nll_loss(x, target, {.weight = torch::ones({3}, at::kLong)}), c10::ValueError);
  EXPECT_THAT(message_of([&] { nn::binary_cross_entropy_with_logits(x, dense, {.pos_weight = torch::ones({4})}); }),
              HasSubstr("expected a pos_weight that broadcasts to the logits' shape [4, 3], got [4]"));
  EXPECT_THROW(asymmetric_loss(x, dense, {.weight = torch::ones({1, 1, 3})}), c10::ValueError);
  EXPECT_THROW(soft_target_cross_entropy(x, dense, {.weight = torch::ones({3}, at::kMeta)}), c10::ValueError);
}

}  // namespace bellows::nn
