#include "support.h"

#include <gmock/gmock.h>

namespace bellows::tap::testing {
namespace {

TEST(OpTap, OperatorsArriveBelowAutograd) {
  auto x = torch::ones({2, 2}, torch::requires_grad());
  auto tap = std::make_shared<NotingTap>();
  {
    OpTapGuard guard(tap);
    at::linear(x + x, x).sum().backward();
  }
  EXPECT_TRUE(tap->has("aten::add.Tensor"));
  EXPECT_FALSE(tap->has("aten::linear"));
  EXPECT_TRUE(tap->has("aten::mm"));
  const size_t seen = tap->size();
  x + x;
  EXPECT_EQ(tap->size(), seen);
  EXPECT_TRUE(x.grad().defined());
}

TEST(OpTap, PassThroughGivesTheSameBitsForATrainingStep) {
  const auto plain = conv_step();
  auto tap = std::make_shared<NotingTap>();
  OpTapGuard guard(tap);
  EXPECT_TRUE(same_bits(plain, conv_step()));
  EXPECT_TRUE(tap->has("aten::convolution_backward"));
}

TEST(OpTap, MayReplaceWhatRuns) {
  struct NegIsAbs : OpTap {
    void call(const OpCall& op, Stack& stack) override {
      if (op.name() != "aten::neg") return op.next(stack);
      const auto input = op.arguments(stack)[0].toTensor();
      stack.pop_back();
      stack.emplace_back(input.abs());
    }
  };
  auto x = torch::ones({2});
  OpTapGuard guard(std::make_shared<NegIsAbs>());
  EXPECT_EQ(x.neg().sum().item<float>(), 2);
}

struct Ordered : OpTap {
  Ordered(std::string name, std::vector<std::string>* list) : tag(std::move(name)), log(list) {}
  void call(const OpCall& op, Stack& stack) override {
    log->push_back(tag + ":" + std::string(op.name()));
    if (own_operator && op.name() == "aten::neg") op.arguments(stack)[0].toTensor().abs();
    op.next(stack);
  }
  std::string tag;
  std::vector<std::string>* log;
  bool own_operator = false;
};

TEST(OpTap, InnermostFirstAndOwnOperatorsGoOutwardsOnly) {
  std::vector<std::string> log;
  auto outer = std::make_shared<Ordered>("outer", &log), inner = std::make_shared<Ordered>("inner", &log);
  inner->own_operator = true;
  auto x = torch::ones({2});
  OpTapGuard a(outer);
  OpTapGuard b(inner);
  x.neg();
  EXPECT_THAT(log, ::testing::ElementsAre("inner:aten::neg", "outer:aten::abs", "outer:aten::neg"));
}

TEST(OpTap, ExceptionInTheMiddleLeavesTheTapsInOrder) {
  struct Fails : OpTap {
    void call(const OpCall& op, Stack& stack) override {
      if (op.name() == "aten::neg") throw std::domain_error("refused");
      op.next(stack);
      if (op.name() == "aten::abs") throw std::domain_error("refused after");
    }
  };
  std::vector<std::string> log;
  auto x = torch::ones({2}, torch::requires_grad());
  {
    OpTapGuard a(std::make_shared<Ordered>("outer", &log));
    OpTapGuard b(std::make_shared<Fails>());
    EXPECT_THROW(x.neg(), std::domain_error);
    EXPECT_THROW(x.abs(), std::domain_error);
    EXPECT_THROW(at::mm(x, x), c10::Error);
    log.clear();
    x.exp();
    EXPECT_THAT(log, ::testing::ElementsAre("outer:aten::exp"));
  }
  log.clear();
  x.exp();
  EXPECT_THAT(log, ::testing::IsEmpty());
}

TEST(OpTap, WrongOrderEndsTheRightOneAndHeals) {
  auto capture = LogCapture::install();
  std::vector<std::string> log;
  auto x = torch::ones({2});
  auto a = std::make_unique<OpTapGuard>(std::make_shared<Ordered>("a", &log));
  auto b = std::make_unique<OpTapGuard>(std::make_shared<Ordered>("b", &log));
  a.reset();
  x.neg();
  b.reset();
  x.neg();
  capture->restore();
  EXPECT_THAT(log, ::testing::ElementsAre("b:aten::neg"));
  EXPECT_THAT(capture->text, ::testing::HasSubstr("OpTapGuard: the guard was destroyed out of order"));
}

TEST(OpTap, GuardDestroyedOnAnotherThreadEndsTheClient) {
  auto capture = LogCapture::install();
  auto tap = std::make_shared<NotingTap>();
  auto guard = std::make_unique<OpTapGuard>(tap);
  std::thread([&] { guard.reset(); }).join();
  torch::ones({2}).neg();
  capture->restore();
  EXPECT_EQ(tap->size(), 0u);
  EXPECT_THAT(capture->text, ::testing::HasSubstr("the wrong thread"));
}

TEST(OpTap, DetachArrivesOnceAndViewsAndInPlaceArriveAsSuch) {
  auto x = torch::ones({2, 3}, torch::requires_grad());
  auto tap = std::make_shared<NotingTap>();
  OpTapGuard guard(tap);
  const auto y = x.detach();
  EXPECT_EQ(tap->count("aten::detach"), 1u);
  EXPECT_TRUE(y.is_alias_of(x));
  auto z = (x * 1).t();
  z.add_(torch::ones({3, 2}));
  z.select(0, 0).zero_();
  EXPECT_TRUE(tap->has("aten::t"));
  EXPECT_TRUE(tap->has("aten::add_.Tensor"));
  EXPECT_TRUE(tap->has("aten::zero_"));
  EXPECT_EQ(z.sum().item<float>(), 8);
  z.sum().backward();
  EXPECT_EQ(x.grad().sum().item<float>(), 4);
}

TEST(OpTap, ShallowCopiesOfAllLayouts) {
  OpTapGuard guard(std::make_shared<NotingTap>());
  const auto dense = torch::eye(3);
  for (const at::Tensor& t : {dense, dense.to_sparse(), dense.to_sparse_csr(), dense.to_mkldnn()}) {
    EXPECT_TRUE(t.detach().defined());
    EXPECT_TRUE(t.tensor_data().defined());
    EXPECT_EQ(t.variable_data().layout(), t.layout());
  }
}

TEST(OpTap, InferenceModeGivesCompositesWhole) {
  const auto x = torch::ones({2, 2});
  auto tap = std::make_shared<NotingTap>();
  OpTapGuard guard(tap);
  at::matmul(x, x);
  EXPECT_TRUE(tap->has("aten::mm"));
  EXPECT_FALSE(tap->has("aten::matmul"));
  c10::InferenceMode inference;
  at::matmul(x, x);
  EXPECT_TRUE(tap->has("aten::matmul"));
}

TEST(OpTap, AutocastHasDoneItsCasts) {
  const auto x = torch::ones({2, 2});
  auto tap = std::make_shared<NotingTap>();
  OpTapGuard guard(tap);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto y = at::mm(x, x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_THAT(tap->names, ::testing::IsSupersetOf({"aten::_to_copy", "aten::mm"}));
}

TEST(OpTap, StackMayHoldMoreBelow) {
  auto x = torch::ones({2});
  struct Top : OpTap {
    void call(const OpCall& op, Stack& stack) override {
      if (op.name() == "aten::add") {
        EXPECT_EQ(op.arguments(stack).size(), 3u);
        EXPECT_TRUE(op.arguments(stack)[0].isTensor());
      }
      op.next(stack);
      if (op.name() == "aten::add") value = op.results(stack)[0].toTensor().sum().item<float>();
    }
    float value = 0;
  };
  auto tap = std::make_shared<Top>();
  OpTapGuard guard(tap);
  torch::jit::Stack stack{c10::IValue("below"), x, x, 1};
  c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor").callBoxed(&stack);
  EXPECT_EQ(tap->value, 4);
  EXPECT_EQ(stack.size(), 2u);
}

TEST(OpTap, NullIsRefused) {
  EXPECT_THROW(OpTapGuard(nullptr), c10::ValueError);
}

}  // namespace
}  // namespace bellows::tap::testing
