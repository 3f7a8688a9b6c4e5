#include "bellows/tap/argument_tap.h"

#include <gmock/gmock.h>

#include "bellows/tap/context.h"
#include "support.h"
#include "tests/support/errors.h"

namespace bellows::tap::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Notes the operators and doubles the weight of linears.
struct Doubling : ArgumentTap {
  explicit Doubling(at::Tensor the_weight) : weight(std::move(the_weight)) {}
  void call(const OpRef& op, std::span<c10::IValue> arguments) override {
    names.emplace_back(op.name());
    if (op.name() == "aten::linear" && arguments[1].toTensor().is_same(weight))
      arguments[1] = at::matmul(weight, at::eye(3)) * 2;
  }
  at::Tensor weight;
  std::vector<std::string> names;
};

TEST(ArgumentTap, ReplacesArgumentsAboveAutograd) {
  const at::Tensor x = torch::randn({4, 3}), w = torch::randn({2, 3}, torch::requires_grad());
  const auto tap = std::make_shared<Doubling>(w);
  at::Tensor y;
  {
    const ArgumentTapGuard guard(tap);
    y = at::linear(x, w);
  }
  EXPECT_TRUE(at::allclose(y, 2 * at::linear(x, w)));
  y.sum().backward();
  EXPECT_TRUE(at::allclose(w.grad(), 2 * x.sum(0).expand({2, 3})));
  EXPECT_EQ(tap->names.front(), "aten::linear") << "the operator before its parts";
  tap->names.clear();
  at::linear(x, w);
  EXPECT_THAT(tap->names, IsEmpty()) << "the guard has ended";
}

TEST(ArgumentTap, ReceivesOnlyLayersAndNotItsOwnOperators) {
  const at::Tensor w = torch::randn({3, 3});
  const auto tap = std::make_shared<Doubling>(w);
  const ArgumentTapGuard guard(tap);
  (w + w).relu().sum();
  EXPECT_THAT(tap->names, IsEmpty());
  at::mm(w, w);
  EXPECT_THAT(tap->names, ElementsAre("aten::mm"));
  tap->names.clear();
  at::conv2d(torch::randn({1, 2, 4, 4}), torch::randn({2, 2, 3, 3}));
  EXPECT_THAT(tap->names, ElementsAre("aten::conv2d", "aten::convolution", "aten::_convolution"));
}

// All operators of a step with and without a tap that changes nothing.
TEST(ArgumentTap, ChangesNoBits) {
  const auto plain = conv_step();
  const auto tap = std::make_shared<Doubling>(at::Tensor());
  const ArgumentTapGuard guard(tap);
  EXPECT_TRUE(same_bits(plain, conv_step()));
  EXPECT_THAT(tap->names, ::testing::Contains("aten::convolution"));
}

TEST(ArgumentTap, NestedInOrderOfInstallation) {
  struct Adding : ArgumentTap {
    explicit Adding(double the_addend) : addend(the_addend) {}
    void call(const OpRef& op, std::span<c10::IValue> arguments) override {
      if (op.name() == "aten::mm") arguments[0] = arguments[0].toTensor() * addend + addend;
    }
    double addend;
  };
  const at::Tensor one = torch::ones({1, 1});
  const ArgumentTapGuard outer(std::make_shared<Adding>(2));
  const ArgumentTapGuard inner(std::make_shared<Adding>(10));
  EXPECT_EQ(at::mm(one, one).item<float>(), 50);  // (1 · 2 + 2) · 10 + 10
}

TEST(ArgumentTap, ComputesAnOperatorItself) {
  struct Halving : ArgumentTap {
    void call(const OpRef& op, std::span<c10::IValue> /*arguments*/) override { names.emplace_back(op.name()); }
    bool compute(const OpRef& op, Stack& stack) override {
      if (op.name() != "aten::linear") return false;
      const auto arguments = op.arguments(stack);
      const at::Tensor y = at::linear(arguments[0].toTensor(), arguments[1].toTensor()) / 2;
      stack.resize(stack.size() - arguments.size());
      stack.emplace_back(y);
      return true;
    }
    std::vector<std::string> names;
  };
  const at::Tensor x = torch::randn({4, 3}), w = torch::randn({2, 3}, torch::requires_grad());
  const auto tap = std::make_shared<Halving>(), later = std::make_shared<Halving>();
  const ArgumentTapGuard guard(tap), inner(later);
  at::linear(x, w).sum().backward();
  EXPECT_TRUE(at::allclose(w.grad(), x.sum(0).expand({2, 3}) / 2)) << "only the first client computes";
  EXPECT_EQ(tap->names.front(), "aten::linear");
  EXPECT_EQ(later->names.front(), "aten::linear") << "all clients receive the operator";
  tap->names.clear();
  at::dropout(x, 0.5, /*train=*/false);
  at::layer_norm(x, {3});
  EXPECT_THAT(tap->names, ElementsAre("aten::dropout", "aten::layer_norm"));
}

TEST(ArgumentTap, WorksUnderAutocastAndOnCarriedThreads) {
  const at::Tensor x = torch::ones({1, 3}), w = torch::ones({2, 3});
  const auto tap = std::make_shared<Doubling>(w);
  const ArgumentTapGuard guard(tap);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor y = at::linear(x, w);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(y[0][0].item<float>(), 6);
  at::Tensor carried, plain;
  tap::thread([&] { carried = at::linear(x, w); }).join();
  std::thread([&] { plain = at::linear(x, w); }).join();
  EXPECT_EQ(carried[0][0].item<float>(), 6);
  EXPECT_EQ(plain[0][0].item<float>(), 3);
}

TEST(ArgumentTap, ExceptionsPropagateAndTheTapStaysValid) {
  struct Refusing : ArgumentTap {
    void call(const OpRef&, std::span<c10::IValue>) override { throw std::domain_error("refused"); }
  };
  const at::Tensor x = torch::ones({2, 2});
  {
    const ArgumentTapGuard guard(std::make_shared<Refusing>());
    EXPECT_THROW(at::mm(x, x), std::domain_error);
    EXPECT_THROW(at::mm(x, x), std::domain_error);
  }
  EXPECT_EQ(at::mm(x, x)[0][0].item<float>(), 2);
}

TEST(ArgumentTap, NullIsRefused) {
  EXPECT_THROW(ArgumentTapGuard{nullptr}, c10::ValueError);
}

}  // namespace
}  // namespace bellows::tap::testing
