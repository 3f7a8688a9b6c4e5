#include "support.h"

#include <gmock/gmock.h>

namespace bellows::tap::testing {
namespace {

struct NoRandom : NotingCheck {
  void check(const OpRef& op, Stack& stack) override {
    NotingCheck::check(op, stack);
    if (op.name() == "aten::normal_") throw std::domain_error("random operator before seeding");
  }
};

TEST(OpCheck, RefusalLeavesTheOperatorsCall) {
  auto x = torch::zeros({3});
  OpCheckGuard guard(std::make_shared<NoRandom>());
  EXPECT_THROW(x.normal_(), std::domain_error);
  EXPECT_EQ(x.abs().sum().item<float>(), 0);
  EXPECT_EQ(x._version(), 0);
}

TEST(OpCheck, UserCallArrivesFirstThenItsParts) {
  const auto x = torch::ones({2, 2});
  auto check = std::make_shared<NotingCheck>();
  OpCheckGuard guard(check);
  at::linear(x, x);
  EXPECT_EQ(check->names[0], "aten::linear");
  EXPECT_TRUE(check->has("aten::matmul") || check->has("aten::mm"));
}

TEST(OpCheck, ChangesNoBits) {
  const auto plain = conv_step();
  auto check = std::make_shared<NotingCheck>();
  OpCheckGuard guard(check);
  EXPECT_TRUE(same_bits(plain, conv_step()));
  EXPECT_TRUE(check->has("aten::convolution_backward"));
}

TEST(OpCheck, ThrowsOutOfBackward) {
  struct NoMultiply : OpCheck {
    void check(const OpRef& op, Stack&) override {
      if (op.name() == "aten::mul") throw std::domain_error("mul refused");
    }
  };
  auto x = torch::ones({3}, torch::requires_grad());
  auto y = x.exp().sum();
  OpCheckGuard guard(std::make_shared<NoMultiply>());
  EXPECT_ANY_THROW(y.backward());
  EXPECT_FALSE(x.grad().defined());
}

TEST(OpCheck, ArgumentsAreVisibleAndOwnOperatorsUnchecked) {
  struct Sum : NotingCheck {
    void check(const OpRef& op, Stack& stack) override {
      add(op.qualified_name());
      if (op.name() == "aten::add") total = op.arguments(stack)[0].toTensor().sum().item<float>();
    }
    float total = 0;
  };
  const auto x = torch::ones({4});
  auto check = std::make_shared<Sum>();
  OpCheckGuard guard(check);
  x + x;
  EXPECT_EQ(check->total, 4);
  EXPECT_THAT(check->names, ::testing::ElementsAre("aten::add.Tensor"));
}

TEST(OpCheck, NestedInOrderOfInstallationAndGoneAfterTheGuard) {
  std::vector<int> order;
  struct Order : OpCheck {
    Order(int n, std::vector<int>* list) : number(n), log(list) {}
    void check(const OpRef&, Stack&) override { log->push_back(number); }
    int number;
    std::vector<int>* log;
  };
  const auto x = torch::ones({4});
  {
    OpCheckGuard a(std::make_shared<Order>(1, &order));
    OpCheckGuard b(std::make_shared<Order>(2, &order));
    x.neg();
  }
  x.neg();
  EXPECT_THAT(order, ::testing::ElementsAre(1, 2));
}

TEST(OpCheck, WorksUnderInferenceModeAndAutocast) {
  const auto x = torch::ones({2, 2});
  auto check = std::make_shared<NotingCheck>();
  OpCheckGuard guard(check);
  {
    c10::InferenceMode inference;
    at::matmul(x, x);
  }
  EXPECT_EQ(check->names[0], "aten::matmul");
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto y = at::mm(x, x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(check->has("aten::mm"));
}

TEST(OpCheck, WrongOrderIsLogged) {
  auto log = LogCapture::install();
  const auto x = torch::ones({2});
  auto first = std::make_shared<NotingCheck>(), second = std::make_shared<NotingCheck>();
  auto a = std::make_unique<OpCheckGuard>(first);
  auto b = std::make_unique<OpCheckGuard>(second);
  a.reset();
  x.neg();
  b.reset();
  x.abs();
  log->restore();
  EXPECT_THAT(first->names, ::testing::IsEmpty());
  EXPECT_THAT(second->names, ::testing::ElementsAre("aten::neg"));
  EXPECT_THAT(log->text, ::testing::HasSubstr("OpCheckGuard: destroyed out of order"));
}

TEST(OpCheck, NullIsRefused) {
  EXPECT_THROW(OpCheckGuard(nullptr), c10::ValueError);
}

}  // namespace
}  // namespace bellows::tap::testing
