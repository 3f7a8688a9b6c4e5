#include <gmock/gmock.h>

#include <cmath>

#include "bellows/recompute/budget_plan.h"
#include "bellows/recompute/choose.h"
#include "tests/recompute/support.h"
#include "tests/support/errors.h"

namespace bellows::recompute::testing {

namespace {

/// A region's trace, written by hand.
struct TracedRegion {
  detail::RegionTrace trace;
  std::vector<at::Tensor> alive;
  at::Tensor call(double seconds, const std::vector<at::Tensor>& inputs, int64_t bytes) {
    detail::TracedCall call{.kind = {.kind = detail::CallKind::makes}, .seconds = seconds};
    const std::vector<c10::IValue> arguments(inputs.begin(), inputs.end());
    call.reads = trace.read(arguments);
    alive.push_back(torch::empty({bytes}, at::kByte));
    trace.add(std::move(call), {alive.back()});
    return alive.back();
  }
};

}  // namespace

TEST(Budget, ChoosesWhatSavesMostTime) {
  // in --product (4 s)--> a --gelu (1 s)--> b --product (4 s)--> c --add (0.1 s)--> d, a small one of it (0.2 s): e
  TracedRegion region;
  const at::Tensor in = torch::zeros({8});
  const at::Tensor a = region.call(4, {in}, 400), b = region.call(1, {a}, 400), c = region.call(4, {b}, 100);
  const at::Tensor d = region.call(0.1, {c, in}, 100), e = region.call(0.2, {d}, 4);
  for (const at::Tensor& saved : {in, a, b, d, e}) region.trace.saved(saved);
  region.trace.finish();
  const auto again = [&](int64_t room) {
    const auto kept = detail::choose({&region.trace}, room).front();
    int64_t bytes = 0;
    for (size_t i = 0; i < kept.size(); ++i) bytes += kept[i] ? region.trace.bytes(i) : 0;
    EXPECT_LE(bytes, room);
    return region.trace.seconds_again(kept);
  };
  EXPECT_NEAR(again(2000), 0, 1e-9);   // all that was saved; c is not computed again: nobody needs it
  EXPECT_NEAR(again(504), 1, 1e-9);    // all but b
  EXPECT_NEAR(again(500), 1.2, 1e-9);  // not the small one
  EXPECT_NEAR(again(104), 5, 1e-9);    // a and b are computed again, and neither c nor d
  EXPECT_NEAR(again(0), 9.3, 1e-9);
  region.trace.never_skip();
  EXPECT_NEAR(again(504), 1.1, 1e-9);  // c is kept: without it, it would be computed again
  EXPECT_NEAR(again(2000), 0, 1e-9);
}

TEST(Budget, EndsInAnyOrderAndKnowsNoLimitWhereThereIsNone) {
  auto outer = std::make_unique<BudgetGuard>(0.5), inner = std::make_unique<BudgetGuard>(0.7);
  outer.reset();
  EXPECT_NE(detail::current_budget(), nullptr);
  inner.reset();
  EXPECT_EQ(detail::current_budget(), nullptr);
  detail::BudgetPlan plan({.target_bytes = INT64_MAX});
  for (int step = 0; step < 5; ++step) {
    TracedRegion region;
    region.trace.saved(region.call(1, {torch::zeros({8})}, 100 + step));
    const size_t number = plan.begin({});
    EXPECT_EQ(number, 0);
    const auto todo = plan.finish(number, {std::make_shared<detail::RegionTrace>(region.trace), 100 + step});
    EXPECT_EQ(todo->kept_bytes, step == 0 ? 0 : 99 + step);
    EXPECT_EQ(plan.reserve(todo->kept_bytes), true);
    plan.backward_begins();
    EXPECT_EQ(plan.plan_of(0)->measured, step >= 2);
  }
}

TEST(Budget, OutOfRange) {
  const at::Tensor x = torch::randn({4}, torch::requires_grad());
  const auto f = [](const at::Tensor& y) { return y.exp(); };
  for (const double wrong : {-0.1, 1.01, std::nan("")}) {
    EXPECT_THAT(message_of([&] { checkpoint({.budget = wrong}, f, x); }), ::testing::HasSubstr("between 0 and 1"));
    EXPECT_THAT(message_of([&] { BudgetGuard guard(wrong); }), ::testing::HasSubstr("between 0 and 1"));
  }
  EXPECT_THAT(message_of([] { BudgetGuard guard(BudgetOptions{}); }), ::testing::HasSubstr("got neither"));
  EXPECT_THAT(message_of([] { BudgetGuard guard({.fraction = 0.5, .target_bytes = 1}); }),
              ::testing::HasSubstr("got both"));
  EXPECT_THAT(message_of([] { BudgetGuard guard({.target_bytes = -2}); }), ::testing::HasSubstr("at least 0, got -2"));
}

}  // namespace bellows::recompute::testing
