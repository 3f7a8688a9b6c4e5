#include "bellows/optim/step_in_backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/optim/clip.h"
#include "bellows/optim/optimizers.h"
#include "tests/support/errors.h"

namespace bellows::optim {

namespace {

using testing::HasSubstr;

/// Two layers of which one is used twice, and a weight that is frozen.
struct TiedNet : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(70, 70));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(70, 3));
  at::Tensor frozen = register_parameter("frozen", torch::ones({3}), /*requires_grad=*/false);
  at::Tensor loss(int step) {
    torch::manual_seed(static_cast<uint64_t>(40 + step));
    const at::Tensor x = torch::randn({9, 70});
    return (last(first(first(x).tanh()).tanh()) * frozen).square().mean();
  }
};

std::shared_ptr<TiedNet> tied_net() {
  torch::manual_seed(77);
  return std::make_shared<TiedNet>();
}

}  // namespace

TEST(StepInBackward, IsStepForStepTheSame) {
  const auto check = [](auto make) {
    const auto plain = tied_net(), stepping = tied_net();
    const auto a = make(plain->parameters()), b = make(stepping->parameters());
    const auto handle = step_in_backward(*b);
    for (int step = 0; step < 4; ++step) {
      a->zero_grad();
      plain->loss(step).backward();
      a->step();
      stepping->loss(step).backward();
      for (const at::Tensor& p : stepping->parameters()) EXPECT_FALSE(p.grad().defined());
    }
    for (size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(plain->parameters()[i], stepping->parameters()[i])) << i;
    EXPECT_EQ(b->param_groups()[0].params().size(), plain->parameters().size());
  };
  check([](auto p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.01}); });
  check([](auto p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.01, .state_dtype = State::int8}); });
  check([](auto p) { return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9)); });
}

TEST(StepInBackward, EndsWithItsHandle) {
  const auto net = tied_net();
  SGD sgd(net->parameters(), {.lr = 0.1});
  step_in_backward(sgd).reset();
  const at::Tensor before = net->last->weight.detach().clone();
  net->loss(0).backward();
  EXPECT_TRUE(torch::equal(before, net->last->weight));
  EXPECT_GT(clip_grad_norm_(net->parameters(), 1).item<double>(), 0);
}

TEST(StepInBackward, RefusesWhatNeedsAllGradients) {
  const auto net = tied_net();
  AdamW adamw(net->parameters(), {});
  net->loss(0).backward();
  EXPECT_THAT(message_of([&] { step_in_backward(adamw); }), HasSubstr("has a gradient already"));
  adamw.zero_grad();
  const auto handle = step_in_backward(adamw);
  EXPECT_THAT(message_of([&] { step_in_backward(adamw); }), HasSubstr("hook"));
  net->loss(0).backward();
  EXPECT_THAT(message_of([&] { clip_grad_norm_(net->parameters(), 1); }), HasSubstr("the gradients are gone"));
  EXPECT_THAT(message_of([&] { clip_and_step(adamw, 1); }), HasSubstr("the gradients are gone"));
  EXPECT_THAT(message_of([&] { net->loss(0).backward({}, std::nullopt, /*create_graph=*/true); }),
              HasSubstr("create_graph"));
  torch::optim::LBFGS lbfgs(tied_net()->parameters());
  EXPECT_THAT(message_of([&] { step_in_backward(lbfgs); }), HasSubstr("treats each by itself"));
}

}  // namespace bellows::optim
