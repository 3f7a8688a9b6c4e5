#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "bellows/nn/loss.h"
#include "tests/support/golden.h"

namespace bellows::nn {

namespace {

at::Tensor class_weights() {
  return torch::tensor({0.2, 1.5, 1.0, 0.7, 2.5}, at::kDouble);
}

/// The options of a case stand here and, under the same name, in tools/goldens/nn.py.
struct LossCase {
  std::string name;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& target)> loss;
};

std::vector<LossCase> binary_cases() {
  const at::Tensor w = class_weights();
  const auto bce = [](BinaryCrossEntropyOptions options) {
    return
        [=](const at::Tensor& x, const at::Tensor& t) { return nn::binary_cross_entropy_with_logits(x, t, options); };
  };
  const auto focal = [](SigmoidFocalLossOptions options) {
    return [=](const at::Tensor& x, const at::Tensor& t) { return sigmoid_focal_loss(x, t, options); };
  };
  const auto asymmetric = [](AsymmetricLossOptions options) {
    return [=](const at::Tensor& x, const at::Tensor& t) { return asymmetric_loss(x, t, options); };
  };
  return {
      {"bce_smooth", bce({.label_smoothing = 0.1})},
      {"bce_weights", bce({.weight = w, .pos_weight = w + 1, .label_smoothing = 0.2, .reduction = Reduction::sum})},
      {"bce_none", bce({.pos_weight = w.view({5, 1}), .reduction = Reduction::none})},
      {"bce_indices", bce({.weight = w, .pos_weight = w + 1, .label_smoothing = 0.1})},
      {"sigmoid_focal", focal({})},
      {"sigmoid_focal_mean", focal({.alpha = 0.6, .gamma = 1.3, .reduction = Reduction::mean})},
      {"sigmoid_focal_all",
       focal({.alpha = -1, .gamma = 3, .weight = w, .label_smoothing = 0.1, .reduction = Reduction::sum})},
      {"asymmetric", asymmetric({})},
      {"asymmetric_all", asymmetric({.gamma_neg = 2, .gamma_pos = 0.5, .clip = 0.1})},
  };
}

std::vector<LossCase> class_cases() {
  const at::Tensor w = class_weights();
  const auto nll = [](NLLLossOptions options) {
    return [=](const at::Tensor& x, const at::Tensor& t) { return nn::nll_loss(x, t, options); };
  };
  const auto soft = [](SoftTargetOptions options) {
    return [=](const at::Tensor& x, const at::Tensor& t) { return soft_target_cross_entropy(x, t, options); };
  };
  const auto kl = [](SoftTargetOptions options) {
    return [=](const at::Tensor& x, const at::Tensor& t) { return soft_target_kl_div(x, t, options); };
  };
  const auto focal = [](FocalLossOptions options) {
    return [=](const at::Tensor& x, const at::Tensor& t) { return focal_loss(x, t, options); };
  };
  return {
      {"nll_smooth", nll({.label_smoothing = 0.1})},
      {"nll_all_mean", nll({.weight = w, .label_smoothing = 0.3})},
      {"nll_all_sum", nll({.weight = w, .label_smoothing = 0.3, .reduction = Reduction::sum})},
      {"nll_all_none", nll({.weight = w, .label_smoothing = 0.3, .reduction = Reduction::none})},
      {"nll_plain", nll({.weight = w})},
      {"soft", soft({})},
      {"soft_all", soft({.weight = w, .label_smoothing = 0.2})},
      {"soft_none", soft({.reduction = Reduction::none})},
      {"kl", kl({})},
      {"kl_all", kl({.weight = w, .label_smoothing = 0.2, .reduction = Reduction::sum})},
      {"focal", focal({})},
      {"focal_all", focal({.gamma = 1.5, .weight = w, .label_smoothing = 0.1})},
  };
}

void expect_golden(const Golden& golden, const LossCase& c) {
  SCOPED_TRACE(c.name);
  const at::Tensor x = golden(c.name + ".x").clone().requires_grad_();
  const at::Tensor loss = c.loss(x, golden(c.name + ".target"));
  ASSERT_EQ(loss.sizes(), golden(c.name + ".loss").sizes());
  EXPECT_TRUE(at::allclose(loss, golden(c.name + ".loss"), 1e-10, 1e-12)) << loss << " vs " << golden(c.name + ".loss");
  // nll's golden differentiates through another log_softmax, which changes nothing in the values.
  const at::Tensor input = golden(c.name + ".x").clone().requires_grad_();
  const bool smoothed_nll = c.name.rfind("nll_", 0) == 0 && c.name != "nll_plain";
  const at::Tensor again = c.loss(smoothed_nll ? at::log_softmax(input, 1) : input, golden(c.name + ".target"));
  const at::Tensor gradient = torch::autograd::grad({again.sum()}, {input})[0];
  EXPECT_TRUE(at::allclose(gradient, golden(c.name + ".grad"), 1e-10, 1e-12));
}

}  // namespace

TEST(LossGolden, BinaryLossesAreThePackages) {
  const Golden golden("nn/losses.safetensors");
  for (const LossCase& c : binary_cases()) expect_golden(golden, c);
}

TEST(LossGolden, ClassLossesAreThePackages) {
  const Golden golden("nn/losses.safetensors");
  for (const LossCase& c : class_cases()) expect_golden(golden, c);
}

TEST(LossGolden, SmoothedOneHotIsTimms) {
  const Golden golden("nn/losses.safetensors");
  EXPECT_TRUE(at::allclose(smooth_one_hot(golden("one_hot.target"), 5, 0.1), golden("one_hot.loss"), 1e-6, 0));
}

}  // namespace bellows::nn
