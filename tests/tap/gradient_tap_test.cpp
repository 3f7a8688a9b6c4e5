#include "bellows/tap/gradient_tap.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace bellows::tap {
namespace {

TEST(GradientTap, TellsOfEachGradientAndOfTheEnd) {
  const at::Tensor a = torch::ones({2}, torch::requires_grad()), b = torch::ones({2}, torch::requires_grad());
  std::vector<std::string> events;
  const auto note = [&](const char* name) {
    return [&events, name](const at::Tensor& parameter) {
      events.push_back(name + std::to_string(parameter.grad()[0].item<int>()));
      parameter.mutable_grad().reset();
      if (events.size() == 1) {
        EXPECT_GE(backward_id(), 0);
        at_end_of_backward([&events] { events.emplace_back("end"); });
      }
    };
  };
  {
    const GradientTap tap_a(a, note("a")), tap_b(b, note("b"));
    (a * 2 + (a * b).exp() * 0 + b * 3).sum().backward();
    std::sort(events.begin(), events.begin() + 2);
    EXPECT_EQ(events, (std::vector<std::string>{"a2", "b3", "end"}));
    EXPECT_EQ(backward_id(), -1);
  }
  (a + b).sum().backward();  // nobody listens any more
  EXPECT_EQ(events.size(), 3);
  EXPECT_TRUE(a.grad().defined());
}

TEST(GradientTap, ABackwardThatFailsNeverEnds) {
  const at::Tensor a = torch::ones({2}, torch::requires_grad());
  std::weak_ptr<int> alive;
  bool ended = false;
  const GradientTap tap(a, [&](const at::Tensor&) {
    const auto kept = std::make_shared<int>();
    alive = kept;
    at_end_of_backward([&ended, kept] { ended = true; });
    TORCH_CHECK(false, "no");
  });
  EXPECT_ANY_THROW(a.sum().backward());
  EXPECT_FALSE(ended);
  EXPECT_TRUE(alive.expired());
  EXPECT_ANY_THROW(at_end_of_backward([] {}));
}

TEST(GradientTap, RefusesWhatGetsNoGradientAndASecondTap) {
  const at::Tensor a = torch::ones({2}, torch::requires_grad());
  const auto nothing = [](const at::Tensor&) {};
  EXPECT_THROW(GradientTap(torch::ones({2}), nothing), c10::ValueError);
  EXPECT_THROW(GradientTap(a * 2, nothing), c10::ValueError);
  const GradientTap tap(a, nothing);
  EXPECT_THROW(GradientTap(a, nothing), c10::ValueError);
}

}  // namespace
}  // namespace bellows::tap
