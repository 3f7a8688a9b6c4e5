#include <gmock/gmock.h>
#include <torch/torch.h>

#include <mutex>

#include "bellows/nn/norm.h"
#include "bellows/tap/observer.h"
#include "bellows/tap/op_tap.h"
#include "tests/nn/gradcheck.h"

namespace bellows::nn {

namespace {

using testing::Contains;

/// Second-order: the gradient of the gradients, by ours or libtorch's norm.
std::vector<at::Tensor> second_gradients(bool ours, bool center, const at::Tensor& x_, const at::Tensor& w_,
                                         const at::Tensor& dy_) {
  const auto leaf = [](const at::Tensor& t) { return t.detach().requires_grad_(); };
  const at::Tensor x = leaf(x_), w = leaf(w_), dy = leaf(dy_);
  const at::IntArrayRef shape = w.sizes();
  const at::Tensor y = center ? (ours ? nn::layer_norm(x, shape, w) : at::layer_norm(x, shape, w))
                              : (ours ? nn::rms_norm(x, shape, w, 1e-5) : at::rms_norm(x, shape, w, 1e-5));
  const auto first = torch::autograd::grad({y}, {x, w}, {dy}, std::nullopt, /*create_graph=*/true);
  return torch::autograd::grad({first[0].sin().sum() + first[1].cos().sum()}, {x, w, dy});
}

class SeenOperators : public tap::Observer {
 public:
  void before(const tap::OpEvent& event) override {
    const std::lock_guard lock(mutex_);
    names.push_back(event.qualified_name());
  }
  std::vector<std::string> names;

 private:
  std::mutex mutex_;
};

class ForwardingTap : public tap::OpTap {
 public:
  void call(const tap::OpCall& op, tap::Stack& stack) override {
    {
      const std::lock_guard lock(mutex_);
      names.push_back(op.qualified_name());
    }
    op.next(stack);
  }
  std::vector<std::string> names;

 private:
  std::mutex mutex_;
};

std::vector<at::Tensor> small_step() {
  at::manual_seed(9);
  const at::Tensor x = torch::randn({3, 8}).requires_grad_(), w = torch::ones({8}).requires_grad_();
  const at::Tensor y = nn::rms_norm(nn::layer_norm(x, {8}, w), {8}, w);
  const auto gradients = torch::autograd::grad({y}, {x, w}, {torch::randn_like(y)});
  return {y.detach(), gradients[0], gradients[1]};
}

}  // namespace

TEST(NormGradient, AgreesWithFiniteDifferences) {
  at::manual_seed(1);
  const auto random = [](at::IntArrayRef sizes) { return torch::randn(sizes, at::kDouble); };
  EXPECT_TRUE(gradcheck([](const GradcheckInputs& t) { return nn::layer_norm(t[0], {7}, t[1], t[2]); },
                        {random({3, 7}), random({7}), random({7})}));
  EXPECT_TRUE(gradcheck([](const GradcheckInputs& t) { return nn::layer_norm(t[0], {3, 5}); }, {random({2, 3, 5})}));
  EXPECT_TRUE(gradcheck([](const GradcheckInputs& t) { return nn::layer_norm(t[0], {4}, {}, t[1]); },
                        {random({2, 3, 4}), random({4})}));
  EXPECT_TRUE(
      gradcheck([](const GradcheckInputs& t) { return nn::rms_norm(t[0], {9}, t[1]); }, {random({4, 9}), random({9})}));
  EXPECT_TRUE(gradcheck([](const GradcheckInputs& t) { return nn::rms_norm(t[0].t(), {5}); }, {random({5, 2})}));
}

TEST(NormGradient, OfTheGradientEqualsLibtorchs) {
  at::manual_seed(2);
  for (const bool center : {true, false}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{7}, {3, 4}}) {
      std::vector<int64_t> sizes = {5};
      sizes.insert(sizes.end(), shape.begin(), shape.end());
      const at::Tensor x = torch::randn(sizes, at::kDouble), w = torch::randn(shape, at::kDouble);
      const at::Tensor dy = torch::randn(sizes, at::kDouble);
      const auto ours = second_gradients(true, center, x, w, dy), theirs = second_gradients(false, center, x, w, dy);
      for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-9, 1e-11)) << i;
    }
  }
}

TEST(NormGradient, OnlyForWhatRequiresIt) {
  const at::Tensor x = torch::randn({3, 4}), w = torch::ones({4}), b = torch::zeros({4});
  EXPECT_FALSE(nn::layer_norm(x, {4}, w, b).requires_grad());
  const at::Tensor bias_only = b.clone().requires_grad_();
  nn::layer_norm(x, {4}, w, bias_only).sum().backward();
  EXPECT_TRUE(torch::equal(bias_only.grad(), torch::full({4}, 3.f)));
  const at::Tensor weight_only = w.clone().requires_grad_();
  nn::rms_norm(x, {4}, weight_only, 1e-5).sum().backward();
  EXPECT_TRUE(at::allclose(weight_only.grad(), at::rms_norm(x, {4}, {}, 1e-5).sum(0), 1e-4, 1e-5));
  const c10::InferenceMode inference;
  EXPECT_TRUE(nn::layer_norm(x, {4}, weight_only, b).is_inference());
}

TEST(NormGradient, BackwardTwiceNeedsARetainedGraph) {
  const at::Tensor x = torch::randn({3, 4}).requires_grad_();
  const at::Tensor y = nn::layer_norm(x, {4});
  y.sum().backward({}, /*retain_graph=*/true);
  y.sum().backward();
  EXPECT_ANY_THROW(y.sum().backward());
}

TEST(NormGradient, InputChangedInPlaceIsAnError) {
  const at::Tensor x = torch::randn({3, 4}).requires_grad_() * 1;
  const at::Tensor y = nn::rms_norm(x, {4});
  x.mul_(2);
  EXPECT_ANY_THROW(y.sum().backward());
}

TEST(NormOperator, IsSeenByObserversAndTaps) {
  const auto plain = small_step();
  const auto observer = std::make_shared<SeenOperators>();
  const auto tap = std::make_shared<ForwardingTap>();
  {
    const tap::ObserverGuard observe(observer);
    small_step();
  }
  std::vector<at::Tensor> tapped;
  {
    const tap::OpTapGuard guard(tap);
    tapped = small_step();
  }
  for (const auto& names : {observer->names, tap->names}) {
    EXPECT_THAT(names, Contains("bellows::norm").Times(2));
    EXPECT_THAT(names, Contains("bellows::norm_backward").Times(2));
  }
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], tapped[i])) << i;
}

}  // namespace bellows::nn
