#include <gmock/gmock.h>

#include <thread>

#include "tests/recompute/support.h"
#include "tests/support/errors.h"

namespace bellows::recompute::testing {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// No leaf: taps leave those alone.
at::Tensor input() {
  return torch::rand({4, 4}, torch::requires_grad()) * 1;
}

/// What the backward pass says about a function that is told which run it is in.
std::string backward_error(const std::function<at::Tensor(const at::Tensor&, bool second)>& function,
                           CheckpointOptions options = {}) {
  int runs = 0;
  const at::Tensor x = input();
  const at::Tensor y = checkpoint(
      options, [&](const at::Tensor& z) { return function(z, ++runs > 1); }, x);
  const std::string message = message_of([&] { y.sum().backward(); });
  // Nothing is left behind: another region works.
  const at::Tensor other = input();
  const at::Tensor loss = checkpoint([](const at::Tensor& z) { return z.exp(); }, other).sum();
  EXPECT_TRUE(at::equal(torch::autograd::grad({loss}, {other})[0], other.exp()));
  return message;
}

}  // namespace

TEST(CheckpointErrors, NameTheFirstTensorThatDiffers) {
  EXPECT_THAT(
      backward_error([](const at::Tensor& z, bool second) { return (second ? z.narrow(0, 0, 2) : z).sin().exp(); }),
      AllOf(HasSubstr("tensor 0 of the 2"), HasSubstr("Float [4, 4] on cpu"), HasSubstr("Float [2, 4] on cpu"),
            HasSubstr("saved by aten::sin"), HasSubstr("random numbers")));
  EXPECT_THAT(backward_error([](const at::Tensor& z, bool second) {
                return z.sin().to(second ? at::kDouble : at::kFloat).exp().to(at::kFloat);
              }),
              AllOf(HasSubstr("tensor 1 of the 2"), HasSubstr("Double [4, 4]"), HasSubstr("saved by aten::exp")));
}

TEST(CheckpointErrors, FindOtherValuesWhenAsked) {
  const auto counts = [](const at::Tensor& z, bool second) { return z.exp().mul(second ? 2 : 1).sin(); };
  EXPECT_EQ(backward_error(counts), "no error");
  EXPECT_THAT(
      backward_error(counts, {.check_values = true}),
      AllOf(HasSubstr("tensor 1 of the 2"), HasSubstr("has different values"), HasSubstr("saved by aten::sin")));
  const auto same = [](const at::Tensor& z, bool) { return torch::dropout(z, 0.5, true).exp().sin(); };
  EXPECT_EQ(backward_error(same, {.check_values = true}), "no error");
}

TEST(CheckpointErrors, CountWhatIsSaved) {
  const auto fewer = [](const at::Tensor& z, bool second) { return second ? z.sin() : z.sin().exp().sin(); };
  EXPECT_THAT(backward_error(fewer), AllOf(HasSubstr("saved 3 tensors"), HasSubstr("1 in the second run"),
                                           HasSubstr("Tensor 1 is the first")));
  const auto more = [](const at::Tensor& z, bool second) { return second ? z.sin().exp().sin() : z.sin(); };
  EXPECT_THAT(backward_error(more, {.early_stop = false}), HasSubstr("3 in the second run"));
  EXPECT_EQ(backward_error(more), "no error");  // what it saves later is never seen
  EXPECT_EQ(backward_error(more, {.early_stop = false, .check_metadata = false}), "no error");
}

TEST(CheckpointErrors, SayWhatWasModified) {
  const at::Tensor x = input();
  EXPECT_THAT(message_of([&] { checkpoint([](const at::Tensor&, at::Tensor y) { return y.mul_(2); }, x, x * 1); }),
              HasSubstr("the function modified its input 1 in place (version 0, now 1)"));
  at::Tensor h = x * 1, constant = torch::ones({4, 4});
  const at::Tensor y =
      checkpoint([](const at::Tensor& a, const at::Tensor& b) { return (a.sin() + b).cos(); }, h, constant);
  constant.add_(1);
  EXPECT_THAT(message_of([&] { y.sum().backward(); }), AllOf(HasSubstr("input 1"), HasSubstr("version 0, now 1")));
}

TEST(CheckpointErrors, RefuseSecondDerivativesAndBackwardInside) {
  const at::Tensor x = input();
  const at::Tensor y = checkpoint([](const at::Tensor& z) { return z.exp(); }, x).sum();
  EXPECT_THAT(message_of([&] { torch::autograd::grad({y}, {x}, {}, true, true); }), HasSubstr("create_graph"));
  EXPECT_TRUE(at::equal(torch::autograd::grad({y}, {x})[0], x.exp()));
  EXPECT_THAT(message_of([&] {
                checkpoint(
                    [](const at::Tensor& z) {
                      const at::Tensor w = z.detach().requires_grad_();
                      return z * torch::autograd::grad({w.exp().sum()}, {w})[0];
                    },
                    x);
              }),
              HasSubstr("backward was called inside"));
}

TEST(CheckpointErrors, LeaveTheFunctionsOwnErrorsAlone) {
  const auto fails = [](const at::Tensor& z, bool second) {
    const at::Tensor y = z.sin();
    TORCH_CHECK(!second, "no luck");
    return y.exp();
  };
  EXPECT_THAT(backward_error(fails), HasSubstr("no luck"));
  const at::Tensor x = input();
  EXPECT_THAT(message_of([&] {
                checkpoint(
                    [](const at::Tensor& z) -> at::Tensor {
                      TORCH_CHECK(false, "not even once");
                      return z;
                    },
                    x);
              }),
              HasSubstr("not even once"));
  EXPECT_THAT(message_of([&] { checkpoint_sequential(std::vector<Layer>{}, 1, x); }), HasSubstr("at least one layer"));
  EXPECT_THAT(message_of([&] { checkpoint_sequential({[](const at::Tensor& z) { return z; }}, 2, x); }),
              HasSubstr("expected 1 to 1 segments"));
}

TEST(CheckpointErrors, InferenceTensorsCannotBeInputs) {
  at::Tensor made;
  {
    const c10::InferenceMode guard;
    made = torch::ones({4, 4});
  }
  EXPECT_THAT(message_of([&] { checkpoint([](const at::Tensor& a) { return a.exp(); }, made); }),
              HasSubstr("inference mode"));
}

TEST(CheckpointErrors, OthersWhoDrawRandomNumbersAreNoticed) {
  const at::Tensor x = torch::randn({64, 64}, torch::requires_grad());
  bool others_draw = false;
  const auto f = [&](const at::Tensor& y) {
    const at::Tensor z = torch::dropout(y, 0.5, true);
    if (others_draw) std::thread([] { torch::rand({1}); }).join();
    return torch::dropout(z.exp(), 0.5, true).sin();
  };
  const auto nothing = [](const CheckpointOp&) { return CheckpointPolicy::must_recompute; };
  for (const auto& options : {CheckpointOptions{}, CheckpointOptions{.policy = nothing}}) {
    for (const bool in_second : {false, true}) {
      others_draw = !in_second;
      const at::Tensor loss = checkpoint(options, f, x).sum();
      others_draw = in_second;
      EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("Another thread drew"));
    }
  }
  // Where the function itself draws nothing, others may.
  others_draw = false;
  const auto calm = [&](const at::Tensor& y) {
    std::thread([] { torch::rand({1}); }).join();
    return y.exp().sin();
  };
  EXPECT_EQ(message_of([&] { checkpoint(calm, x).sum().backward(); }), "no error");
}

}  // namespace bellows::recompute::testing
