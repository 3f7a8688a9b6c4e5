#include "bellows/tap/random_operators.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bellows/tap/op_tap.h"

namespace bellows::tap {
namespace {

/// Writes down the calls, and performs them by filling with 1 if `performs`.
class RandomRecorder final : public RandomOperators {
 public:
  bool bernoulli(at::Tensor& self, double, const Generator&) override { return take("bernoulli", self); }
  bool bernoulli(at::Tensor& self, const at::Tensor&, const Generator&) override {
    return take("bernoulli of tensor", self);
  }
  bool uniform(at::Tensor& self, double, double, const Generator&) override { return take("uniform", self); }
  bool normal(at::Tensor& self, double, double, const Generator&) override { return take("normal", self); }
  bool random(at::Tensor& self, const Generator&) override { return take("random", self); }
  bool random(at::Tensor& self, int64_t from, std::optional<int64_t> to, const Generator&) override {
    return take("random " + std::to_string(from) + " " + (to ? std::to_string(*to) : "end"), self);
  }
  bool randperm(at::Tensor& out, int64_t n, const Generator&) override {
    return take("randperm " + std::to_string(n), out);
  }

  std::vector<std::string> calls;
  bool performs = true, throws = false;

 private:
  bool take(const std::string& name, at::Tensor& self) {
    calls.push_back(name);
    if (throws) throw std::runtime_error("expected");
    if (performs) self.fill_(1);
    return performs;
  }
};

/// Replaces the operators during a test.
class RandomOperatorsTap : public testing::Test {
 protected:
  RandomOperatorsTap() { replace_random_operators(&recorder()); }
  ~RandomOperatorsTap() override { replace_random_operators(nullptr); }
  static RandomRecorder& recorder() {
    static auto* const recorder = new RandomRecorder;
    return *recorder;
  }
  static std::vector<std::string> take_calls() { return std::exchange(recorder().calls, {}); }
};

TEST_F(RandomOperatorsTap, ReplacesOperatorsAndThoseComposedOfThem) {
  recorder().performs = true;
  at::Tensor x = torch::zeros({4});
  const auto ones = [&] { return torch::equal(std::exchange(x, torch::zeros({4})), torch::ones({4})); };
  EXPECT_TRUE((x.bernoulli_(0.0), ones()));
  EXPECT_TRUE((x.bernoulli_(torch::zeros({4})), ones()));
  EXPECT_TRUE((x.uniform_(5, 6), ones()));
  EXPECT_TRUE((x.normal_(5, 0), ones()));
  EXPECT_TRUE((x.random_(), ones()));
  EXPECT_TRUE((x.random_(9), ones()));
  EXPECT_TRUE((x.random_(8, 9), ones()));
  EXPECT_TRUE((x.random_(8, std::optional<int64_t>()), ones()));
  EXPECT_EQ(take_calls(), (std::vector<std::string>{"bernoulli", "bernoulli of tensor", "uniform", "normal", "random",
                                                    "random 0 9", "random 8 9", "random 8 end"}));
  torch::rand({2}), torch::randn({2}), torch::randint(7, {2}), torch::randperm(2), torch::dropout(x, 0.5, true);
  EXPECT_EQ(take_calls(), (std::vector<std::string>{"uniform", "normal", "random 0 7", "randperm 2", "bernoulli"}));
}

TEST_F(RandomOperatorsTap, LibtorchPerformsTheCallsThatAreLeftToIt) {
  recorder().performs = false;
  torch::manual_seed(1);
  const at::Tensor left = torch::rand({20});
  EXPECT_EQ(take_calls(), std::vector<std::string>{"uniform"});
  replace_random_operators(nullptr);
  torch::manual_seed(1);
  EXPECT_TRUE(torch::equal(torch::rand({20}), left));
  EXPECT_TRUE(take_calls().empty());
}

TEST_F(RandomOperatorsTap, WorksOnOtherThreadsAndUnderAutograd) {
  recorder().performs = true;
  std::thread([] { torch::rand({2}); }).join();
  EXPECT_EQ(take_calls(), std::vector<std::string>{"uniform"});
  at::Tensor x = torch::zeros({3}).requires_grad_();
  const at::Tensor y = x * 1;
  const auto version = y._version();
  y.uniform_();
  EXPECT_EQ(y._version(), version + 1);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::zeros({3})));
  take_calls();
}

TEST_F(RandomOperatorsTap, WorksInsideOfAnOpTap) {
  struct PassThrough final : OpTap {
    void call(const OpCall& op, Stack& stack) override { op.next(stack); }
  };
  recorder().performs = true;
  at::Tensor x = torch::zeros({3});
  {
    const OpTapGuard guard(std::make_shared<PassThrough>());
    x.uniform_();
    torch::dropout(x, 0.5, true);
  }
  EXPECT_TRUE(torch::equal(x, torch::ones({3})));
  EXPECT_EQ(take_calls(), (std::vector<std::string>{"uniform", "bernoulli"}));
}

TEST_F(RandomOperatorsTap, ExceptionsReachTheCaller) {
  recorder().throws = true;
  EXPECT_THROW(torch::rand({3}), std::runtime_error);
  recorder().throws = false;
  EXPECT_EQ(take_calls(), std::vector<std::string>{"uniform"});
}

}  // namespace
}  // namespace bellows::tap
