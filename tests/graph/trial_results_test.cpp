// Results of trial runs serve later operators with the same arguments.
#include <gtest/gtest.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include "bellows/graph/recording/region.h"
#include "bellows/graph/recording/trial_results.h"

namespace bellows::graph::detail {
namespace {

/// A recorded `mul` without results.
RecordedOperator product_of(BufferId a, BufferId b, const at::Tensor& like) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mul", "Tensor");
  RecordedOperator made{.instruction = {.op = &operator_facts(handle)}};
  for (const BufferId buffer : {a, b})
    made.instruction.arguments.push_back(
        {.kind = OperatorFacts::Kind::tensor, .operands = {{buffer, Geometry::of(like)}}});
  return made;
}

RecordedOperator with_result(RecordedOperator made, BufferId buffer, const at::Tensor& like) {
  made.instruction.results.push_back({.operands = {{buffer, Geometry::of(like)}}});
  made.results.push_back({.made = true, .nbytes = like.nbytes()});
  made.buffers_after = buffer + 1;
  return made;
}

TEST(TrialResults, AreRenumberedForOtherBuffers) {
  const at::Tensor x = torch::zeros({2, 3});
  TrialResults known;
  EXPECT_FALSE(known.find(product_of(5, 7, x), 9));
  known.add(with_result(product_of(5, 7, x), 9, x));
  const auto found = known.find(product_of(12, 3, x), 20);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->instruction.results[0].operands[0].value, 20);
  EXPECT_EQ(found->instruction.results[0].operands[0].geometry, Geometry::of(x));
  EXPECT_EQ(found->instruction.arguments[0].operands[0].value, 12);
  EXPECT_EQ(found->buffers_after, 21);
}

TEST(TrialResults, BelongToTheSameKindOfArguments) {
  const at::Tensor x = torch::zeros({2, 3});
  TrialResults known;
  known.add(with_result(product_of(5, 7, x), 9, x));
  EXPECT_FALSE(known.find(product_of(4, 4, x), 9)) << "the same buffer twice";
  EXPECT_FALSE(known.find(product_of(5, 7, x.to(at::kDouble)), 9));
  EXPECT_FALSE(known.find(product_of(5, 7, torch::zeros({3, 2}).t()), 9));
  RecordedOperator other = product_of(5, 7, x);
  other.state.dispatch_state.grad = !other.state.dispatch_state.grad;
  EXPECT_FALSE(known.find(other, 9));
  other = product_of(5, 7, x);
  other.instruction.arguments.push_back({.constant = 1});
  EXPECT_FALSE(known.find(other, 9));
}

/// Counts the calls of aten::tanh, trial runs included.
struct TanhCounter {
  static inline int64_t calls = 0;
  at::CallbackHandle handle = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
    calls += std::string_view(function.name()) == "aten::tanh";
    return std::unique_ptr<at::ObserverContext>();
  }));
  ~TanhCounter() { at::removeCallback(handle); }
};

TEST(TrialResults, EqualLayersNeedOneTrialRun) {
  Region region({.record_deferred = true});
  const auto call = [&](const at::Tensor& x, int layers) {
    at::Tensor y = x;
    region.run([&] {
      const at::NoGradGuard no_grad;
      for (int layer = 0; layer < layers; ++layer) y = y.tanh();
    });
    return y;
  };
  const TanhCounter counter;
  const auto calls_of = [&](const at::Tensor& x, int layers) {
    const int64_t before = TanhCounter::calls;
    EXPECT_TRUE(at::equal(call(x, layers), [&] {
      at::Tensor y = x;
      for (int layer = 0; layer < layers; ++layer) y = at::tanh(y);
      return y;
    }()));
    return TanhCounter::calls - before;
  };
  const at::Tensor x = torch::randn({4, 5});
  const int64_t one = calls_of(x, 1), ten = calls_of(torch::randn({6, 5}), 10);
  EXPECT_EQ(ten - one, 9 * (one - 1)) << "each further layer costs the same operators, but no trial run";
}

}  // namespace
}  // namespace bellows::graph::detail
