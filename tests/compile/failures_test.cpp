#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <torch/torch.h>

#include <chrono>
#include <thread>

#include "bellows/compile.h"
#include "bellows/optim/optimizers.h"
#include "tests/support/captured_log.h"
#include "tests/support/failing_allocation.h"
#include "tests/support/failing_threads.h"

namespace bellows::compile_detail::testing {
namespace {

using test::FailAllocation;
using test::FailOn;
using test::FailThreads;

template <class Compiled>
bool becomes_ready(const Compiled& compiled) {
  const auto start = std::chrono::steady_clock::now();
  while (!compiled.ready()) {
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(120)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

at::Tensor formula(const at::Tensor& x) {
  const c10::InferenceMode inference;
  return (x * 3 + 1).tanh().sum();
}

TEST(CompileFailures, RunsPlainlyWhereTheSystemGivesNoThread) {
  if (!test::can_fail_threads()) GTEST_SKIP() << "sanitizers make threads themselves";
  const auto compiled = compile(&formula, {.always = true});
  const CapturedLog log;
  {
    const FailThreads none;
    for (const int64_t size : {50, 60}) {
      const at::Tensor x = torch::rand({size});
      for (int call = 0; call < 4; ++call) {
        EXPECT_TRUE(at::equal(compiled(x), formula(x)));
        ASSERT_TRUE(compiled.ready()) << "waits for a thread that was never started";
      }
    }
    EXPECT_GT(none.refused(), 0);
  }
  EXPECT_THAT(log.text(), ::testing::HasSubstr("cannot start a thread: Resource temporarily unavailable"));
  EXPECT_EQ(log.text().find("cannot start"), log.text().rfind("cannot start")) << "is said once";
  const at::Tensor x = torch::rand({70});
  for (int call = 0; call < 4; ++call) {
    EXPECT_TRUE(at::allclose(compiled(x), formula(x)));
    ASSERT_TRUE(becomes_ready(compiled));
  }
  EXPECT_THAT(compiled.explain().to_text(), ::testing::HasSubstr("program of")) << "nothing is made any more";
}

/// In a child of fork(). Returns: all calls were right and became ready
bool works_in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(100);
    ::_exit(body() ? 0 : 1);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(CompileFailures, AForkWhileProgramsAreMadeWaitsForNothing) {
  const auto compiled = compile(&formula, {.background = true, .always = true});
  std::vector<at::Tensor> inputs;
  inputs.reserve(6);
  for (int64_t i = 0; i < 6; ++i) inputs.push_back(torch::rand({64 + i}));
  for (const at::Tensor& x : inputs) {
    for (int call = 0; call < 3; ++call) compiled(x);
  }
  int forks = 0;
  for (; forks < 20 && !compiled.ready(); ++forks) {
    ASSERT_TRUE(works_in_child([&] {
      bool right = becomes_ready(compiled);
      inputs.push_back(torch::rand({90}));
      for (const at::Tensor& x : inputs) {
        for (int call = 0; call < 3; ++call) right = right && at::allclose(compiled(x), formula(x));
        right = right && becomes_ready(compiled);
      }
      return right;
    }));
  }
  EXPECT_GT(forks, 0) << "all was made before the process forked";
  EXPECT_TRUE(becomes_ready(compiled));
}

/// A model, its optimizer and a compiled training step.
struct Training {
  template <class Optimizer, class Options>
  static Training with() {
    torch::manual_seed(4);
    torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::ReLU(), torch::nn::Linear(8, 3));
    return {model, std::make_shared<Optimizer>(model->parameters(), Options(0.05))};
  }

  void plain_step(int number) {
    const at::Tensor x = torch::full({4, 6}, 0.1 * (number % 7)) + at::arange(24).reshape({4, 6}) * 0.01;
    optimizer->zero_grad();
    {
      const test::SparedAllocations autograd;
      model->forward(x).square().sum().backward();
    }
    optimizer->step();
  }
  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> result;
    for (const at::Tensor& one : model->parameters()) result.push_back(one.detach().clone());
    return result;
  }

  torch::nn::Sequential model;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
};

bool alike(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::allclose(a[i], b[i], 1e-4, 1e-5)) return false;
  }
  return true;
}

constexpr int steps_before = 5, steps_after = 3;

/// The weights after all steps, without the one in the middle or with it.
std::vector<at::Tensor> expected(Training training, bool skips) {
  for (int i = 0; i < steps_before + 1 + steps_after; ++i) {
    if (i != steps_before || !skips) training.plain_step(i);
  }
  return training.weights();
}

/// The k-th allocation of a compiled step fails, and the caller continues.
/// Returns: it failed, so a larger k is worth trying
bool fail_one(const std::function<Training()>& make, int64_t k, const std::vector<at::Tensor>& skipped,
              const std::vector<at::Tensor>& whole) {
  Training training = make();
  const auto step = compile([&](int number) { training.plain_step(number); }, {.always = true});
  for (int i = 0; i < steps_before; ++i) step(i);
  EXPECT_TRUE(becomes_ready(step));
  bool fired = false, threw = false;
  {
    const FailAllocation failing(k, FailOn::this_thread);
    try {
      step(steps_before);
    } catch (const std::exception&) {
      threw = true;
    }
    fired = failing.fired();
  }
  try {
    for (int i = 0; i < steps_after; ++i) step(steps_before + 1 + i);
  } catch (const std::exception& error) {
    EXPECT_TRUE(threw) << "allocation " << k << " failed without an error: " << error.what();
    return fired;  // an error is not silent
  }
  const auto got = training.weights();
  const bool right = alike(got, whole) || (threw && alike(got, skipped));
  EXPECT_TRUE(right) << "allocation " << k << (threw ? " threw" : " went unnoticed");
  return fired;
}

template <class Optimizer, class Options>
void fail_each() {
  const auto make = [] { return Training::with<Optimizer, Options>(); };
  const auto skipped = expected(make(), true), whole = expected(make(), false);
  ASSERT_FALSE(alike(skipped, whole));
  int64_t k = 1;
  while (k <= 300 && fail_one(make, k, skipped, whole)) ++k;
  EXPECT_GT(k, 20);
}

TEST(CompileFailures, AnAllocationThatFailsInAStepOfSgdSkipsIt) {
  fail_each<optim::SGD, optim::SGDOptions>();
}

}  // namespace
}  // namespace bellows::compile_detail::testing
