#include "support.h"

#include <gmock/gmock.h>

namespace bellows::tap::testing {
namespace {

TEST(Observer, SeesQualifiedNamesNestedAndInOrder) {
  const auto x = torch::ones({2, 2});
  auto observer = std::make_shared<NotingObserver>();
  {
    ObserverGuard guard(observer);
    at::linear(x + x, x);
  }
  x + x;
  EXPECT_EQ(observer->names[0], "aten::add.Tensor");
  EXPECT_EQ(observer->names[1], "aten::linear");
  EXPECT_TRUE(observer->has("aten::mm"));
  EXPECT_EQ(observer->count("aten::add.Tensor"), 1u);
}

TEST(Observer, ChangesNoBits) {
  const auto plain = conv_step();
  auto observer = std::make_shared<NotingObserver>(
      ObserverNeeds{.backward_nodes = true, .user_scopes = true, .inputs = true, .outputs = true, .times = true});
  ObserverGuard guard(observer);
  EXPECT_TRUE(same_bits(plain, conv_step()));
  EXPECT_TRUE(observer->has("aten::convolution_backward"));
  EXPECT_TRUE(observer->has("ConvolutionBackward0"));
}

struct Recorder : Observer {
  ObserverNeeds wanted;
  std::vector<std::string> log;
  std::string tag;
  std::vector<std::string>* shared = nullptr;
  explicit Recorder(std::string name, std::vector<std::string>* list) : tag(std::move(name)), shared(list) {}
  void before(const OpEvent&) override { shared->push_back("+" + tag); }
  void after(const OpEvent&) override { shared->push_back("-" + tag); }
};

TEST(Observer, NestedBeforeInOrderAfterInReverse) {
  std::vector<std::string> log;
  const auto x = torch::ones({2});
  ObserverGuard a(std::make_shared<Recorder>("a", &log));
  ObserverGuard b(std::make_shared<Recorder>("b", &log));
  x.neg();
  EXPECT_THAT(log, ::testing::ElementsAre("+a", "+b", "-b", "-a"));
}

struct Values : Observer {
  ObserverNeeds needs() const override {
    return {.backward_nodes = true, .inputs = true, .outputs = true, .times = true};
  }
  void before(const OpEvent& event) override {
    if (event.name == "aten::add") {
      ASSERT_EQ(event.inputs.size(), 3u);
      input = event.inputs[0].toTensor().sum().item<float>();
      EXPECT_TRUE(event.outputs.empty());
      EXPECT_GT(event.start_us, 0);
    }
    if (event.kind == OpEvent::Kind::backward_node && event.name == "AddBackward0") backward = event;
    if (event.kind == OpEvent::Kind::op && event.name == "aten::add") forward = event;
  }
  void after(const OpEvent& event) override {
    if (event.name != "aten::add") return;
    EXPECT_TRUE(event.inputs.empty());
    ASSERT_EQ(event.outputs.size(), 1u);
    output = event.outputs[0].toTensor().sum().item<float>();
  }
  float input = 0, output = 0;
  OpEvent forward, backward;
};

TEST(Observer, InputsOutputsAndSequenceNumbers) {
  auto observer = std::make_shared<Values>();
  ObserverGuard guard(observer);
  auto x = torch::ones({3}, torch::requires_grad());
  auto y = x + torch::ones({3});
  EXPECT_EQ(observer->input, 3);
  EXPECT_EQ(observer->output, 6);
  y.sum().backward();
  EXPECT_GE(observer->forward.sequence_number, 0);
  EXPECT_EQ(observer->backward.sequence_number, observer->forward.sequence_number);
  EXPECT_EQ(observer->backward.forward_thread_id, observer->forward.thread_id);
  guard.check();
}

TEST(Observer, NeedsAreTheUnionAndRestoredByTheInnerGuardsEnd) {
  auto outer = std::make_shared<NotingObserver>();
  auto inner = std::make_shared<NotingObserver>(ObserverNeeds{.operators = false, .user_scopes = true});
  const auto x = torch::ones({2});
  ObserverGuard guard(outer);
  {
    ObserverGuard nested(inner);
    RECORD_USER_SCOPE("my scope");
    x.neg();
  }
  x.abs();
  EXPECT_THAT(inner->names, ::testing::ElementsAre("my scope"));
  EXPECT_TRUE(outer->has("aten::neg"));
  EXPECT_TRUE(outer->has("aten::abs"));
  EXPECT_FALSE(outer->has("my scope"));
}

struct Thrower : Observer {
  explicit Thrower(bool late) : in_after(late) {}
  void before(const OpEvent&) override {
    ++calls;
    if (!in_after) throw std::runtime_error("observer failed");
  }
  void after(const OpEvent&) override {
    if (in_after) throw std::runtime_error("observer failed late");
  }
  bool in_after;
  int calls = 0;
};

TEST(Observer, ItsExceptionIsKeptForCheckAndEndsItsCalls) {
  const auto x = torch::ones({2});
  for (const bool late : {false, true}) {
    auto thrower = std::make_shared<Thrower>(late);
    auto other = std::make_shared<NotingObserver>();
    ObserverGuard guard(thrower);
    ObserverGuard witness(other);
    EXPECT_EQ(x.neg().sum().item<float>(), -2);
    x.abs();
    EXPECT_EQ(thrower->calls, 1);
    EXPECT_TRUE(other->has("aten::abs"));
    EXPECT_THROW(guard.check(), std::runtime_error);
    guard.check();
  }
}

TEST(Observer, UncheckedExceptionIsLogged) {
  auto log = LogCapture::install();
  {
    ObserverGuard guard(std::make_shared<Thrower>(false));
    torch::ones({2});
  }
  log->restore();
  EXPECT_THAT(log->text, ::testing::HasSubstr("observer failed"));
}

TEST(Observer, AfterIsCalledWhenTheOperatorThrows) {
  std::vector<std::string> log;
  const auto a = torch::ones({2, 3});
  ObserverGuard guard(std::make_shared<Recorder>("a", &log));
  EXPECT_THROW(at::mm(a, a), c10::Error);
  EXPECT_EQ(std::count(log.begin(), log.end(), "+a"), std::count(log.begin(), log.end(), "-a"));
  EXPECT_FALSE(log.empty());
}

struct OwnOperators : NotingObserver {
  void before(const OpEvent& event) override {
    add(event.qualified_name());
    EXPECT_FALSE((weight * 2).requires_grad());
  }
  at::Tensor weight = torch::ones({2}, torch::requires_grad());
};

TEST(Observer, ItsOwnOperatorsAreNeitherObservedNorRecorded) {
  const auto x = torch::ones({2});
  auto observer = std::make_shared<OwnOperators>();
  ObserverGuard guard(observer);
  x.neg();
  EXPECT_THAT(observer->names, ::testing::ElementsAre("aten::neg"));
}

TEST(Observer, WrongOrderEndsTheRightOneAndIsLogged) {
  auto log = LogCapture::install();
  const auto x = torch::ones({2});
  auto first = std::make_shared<NotingObserver>(), second = std::make_shared<NotingObserver>();
  auto a = std::make_unique<ObserverGuard>(first);
  auto b = std::make_unique<ObserverGuard>(second);
  a.reset();
  x.neg();
  b.reset();
  x.abs();
  log->restore();
  EXPECT_THAT(first->names, ::testing::IsEmpty());
  EXPECT_THAT(second->names, ::testing::ElementsAre("aten::neg"));
  EXPECT_THAT(log->text, ::testing::HasSubstr("ObserverGuard: destroyed out of order"));
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
}

TEST(Observer, NullIsRefused) {
  EXPECT_THROW(ObserverGuard(nullptr), c10::ValueError);
}

}  // namespace
}  // namespace bellows::tap::testing
