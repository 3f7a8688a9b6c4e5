#include "bellows/nn/fast_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace bellows::nn {
namespace {

using Draw = std::function<at::Tensor(const at::Generator&)>;

/// An operator and a name for messages.
struct Case {
  std::string name;
  Draw draw;
};

Case fill(const std::string& name, at::Tensor like, std::function<void(at::Tensor&, const at::Generator&)> draw) {
  return {name + " " + c10::toString(like.scalar_type()) + " " + c10::str(like.sizes()) + c10::str(like.strides()),
          [=](const at::Generator& generator) {
            at::Tensor x = at::empty_strided(like.sizes(), like.strides(), like.options()).fill_(3);
            draw(x, generator);
            return x;
          }};
}

void add_operators(std::vector<Case>& cases, const at::Tensor& like) {
  using at::Generator, at::Tensor;
  cases.push_back(fill("bernoulli_", like, [](Tensor& x, const Generator& g) { x.bernoulli_(0.9, g); }));
  cases.push_back(fill("random_", like, [](Tensor& x, const Generator& g) { x.random_(g); }));
  cases.push_back(fill("random_ to", like, [](Tensor& x, const Generator& g) { x.random_(2, g); }));
  cases.push_back(fill("random_ from to", like, [](Tensor& x, const Generator& g) { x.random_(0, 2, g); }));
  cases.push_back(fill("bernoulli_ p", like, [](Tensor& x, const Generator& g) {
    x.bernoulli_(x.dim() == 0 ? at::full({}, 0.5) : at::linspace(0, 1, x.size(-1)), g);
  }));
  if (!at::isFloatingType(like.scalar_type())) return;
  cases.push_back(fill("uniform_", like, [](Tensor& x, const Generator& g) { x.uniform_(-0.3, 1.9, g); }));
  cases.push_back(fill("normal_", like, [](Tensor& x, const Generator& g) { x.normal_(0.5, 2, g); }));
}

/// All types, and memory layouts that libtorch visits in different orders.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kBool, at::kByte, at::kChar,
                           at::kShort, at::kInt, at::kLong}) {
    const auto options = at::TensorOptions(dtype);
    add_operators(cases, at::empty({5003}, options));
    add_operators(cases, at::empty({130}, options));
    add_operators(cases, at::empty({7, 61, 5}, options).permute({2, 0, 1}));
  }
  add_operators(cases, at::empty({40, 50}).slice(1, 3, 31));
  add_operators(cases, at::empty({40, 50, 6}).select(2, 1));
  add_operators(cases, at::empty({2, 3, 16, 17}).to(at::MemoryFormat::ChannelsLast));
  add_operators(cases, at::empty({3, 40, 50}).transpose(0, 2).slice(0, 5, 44, 3));
  add_operators(cases, at::empty({0}));
  add_operators(cases, at::empty({}));
  add_operators(cases, at::empty({15}));
  return cases;
}

std::vector<Case> composed_cases() {
  using at::Generator;
  return {
      {"rand", [](const Generator& g) { return at::rand({3000}, g); }},
      {"randn", [](const Generator& g) { return at::randn({3000}, g); }},
      {"randn complex", [](const Generator& g) { return at::randn({3000}, g, at::kComplexFloat); }},
      {"randint", [](const Generator& g) { return at::randint(-5, 1000, {3000}, g); }},
      {"randint wide", [](const Generator& g) { return at::randint(-5, int64_t{1} << 50, {3000}, g); }},
      {"randperm", [](const Generator& g) { return at::randperm(3000, g); }},
      {"randperm int", [](const Generator& g) { return at::randperm(3000, g, at::kInt); }},
      {"randperm float", [](const Generator& g) { return at::randperm(3000, g, at::kFloat); }},
      {"bernoulli", [](const Generator& g) { return at::bernoulli(at::full({3000}, 0.3), g); }},
      {"normal", [](const Generator& g) { return at::normal(at::arange(3000.0), 2.0, g); }},
      {"exponential", [](const Generator& g) { return at::empty({3000}).exponential_(2, g); }},
      {"random_ rounded ends", [](const Generator& g) { return at::empty({3000}, at::kHalf).random_(0, 65504, g); }},
      {"random_ from",
       [](const Generator& g) { return at::empty({3000}, at::kLong).random_(5, std::optional<int64_t>(), g); }}};
}

/// Draws several times from one generator, so that each draw begins in the middle of a block.
void expect_same(const Case& test) {
  const at::Generator a = at::detail::createCPUGenerator(5), b = at::detail::createCPUGenerator(5);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor theirs = test.draw(a);
    const FastRandomGuard guard;
    const at::Tensor ours = test.draw(b);
    EXPECT_TRUE(at::equal(ours, theirs)) << test.name << ", draw " << i;
    EXPECT_TRUE(at::equal(at::Tensor(b.get_state()), at::Tensor(a.get_state()))) << test.name << ", draw " << i;
  }
}

TEST(FastRandom, EqualsLibtorchForEveryTypeAndLayout) {
  for (const Case& test : all_cases()) expect_same(test);
}

TEST(FastRandom, ComposedOperatorsEqualLibtorch) {
  for (const Case& test : composed_cases()) expect_same(test);
}

// Without this test, all comparisons would also succeed if libtorch's kernels performed every call.
TEST(FastRandom, ItsKernelsAreUsed) {
  if (at::get_cpu_capability() == "DEFAULT") GTEST_SKIP() << "libtorch uses other formulas without AVX2";
  const auto performed = [](const std::function<void()>& action) {
    const int64_t before = FastRandomGuard::performed();
    action();
    return FastRandomGuard::performed() - before;
  };
  at::Tensor x = at::empty({1000}), half = at::empty({1000}, at::kHalf);
  const auto draw_all = [&] {
    x.uniform_(), x.normal_(), x.random_(), x.random_(0, 10), x.bernoulli_(at::full({}, 0.5));
    half.uniform_(), half.normal_(), at::randperm(1000), at::randint(7, {1000}), x.t().slice(0, 0, 1000, 2).uniform_();
  };
  EXPECT_EQ(performed(draw_all), 0);
  const FastRandomGuard guard;
  EXPECT_EQ(performed(draw_all), 10);
  EXPECT_EQ(performed([] { at::empty({100}).uniform_(); }), 0);

  // libtorch may use the generator of MKL on Intel's processors. It then draws a single word, which is the seed.
  at::Generator generator = at::detail::createCPUGenerator(1);
  const int64_t bernoulli = performed([&] { x.bernoulli_(0.5, generator); });
  const bool libtorch_draws_each_value = generator.get<at::CPUGeneratorImpl>()->engine().data().next_ != 1;
  EXPECT_EQ(bernoulli, libtorch_draws_each_value ? 1 : 0);
}

/// Runs a function from one seed of the default generator, without and with the guard.
void expect_same_from_seed(const std::function<at::Tensor()>& function) {
  torch::manual_seed(3);
  const at::Tensor theirs = function(), next = at::rand({5});
  const FastRandomGuard guard;
  torch::manual_seed(3);
  EXPECT_TRUE(at::equal(function(), theirs));
  EXPECT_TRUE(at::equal(at::rand({5}), next));
}

TEST(FastRandom, DropoutAndItsGradientEqualLibtorch) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    expect_same_from_seed([dtype] {
      at::Tensor x = torch::ones({300, 70}, dtype).requires_grad_();
      at::dropout(x, 0.1, true).square().sum().backward();
      return x.grad();
    });
    expect_same_from_seed([dtype] { return std::get<0>(at::native_dropout(at::ones({300, 70}, dtype), 0.4, true)); });
  }
}

TEST(FastRandom, IsActiveWhileAnEnabledGuardExists) {
  EXPECT_FALSE(FastRandomGuard::active());
  {
    const FastRandomGuard off(false);
    EXPECT_FALSE(FastRandomGuard::active());
    const FastRandomGuard outer;
    {
      const FastRandomGuard inner;
      EXPECT_TRUE(FastRandomGuard::active());
    }
    EXPECT_TRUE(FastRandomGuard::active());
  }
  EXPECT_FALSE(FastRandomGuard::active());
}

TEST(FastRandom, GeneratorsThatChangeBetweenCallsEqualLibtorch) {
  const auto run = [] {
    at::Generator generator = at::detail::createCPUGenerator(1);
    std::vector<at::Tensor> drawn;
    const auto draw = [&] { drawn.push_back(at::empty({1000}).bernoulli_(0.4, generator).clone()); };
    draw();
    const at::Tensor saved = generator.get_state();
    at::Generator copy = generator.clone();
    draw();
    generator.set_current_seed(77);
    draw();
    generator.set_state(saved);
    draw();
    std::swap(generator, copy);
    draw();
    drawn.push_back(at::empty({7}).normal_(0, 1, generator));  // stores the second normal value of a pair
    draw();
    drawn.push_back(at::empty({500}).normal_(0, 1, generator));
    drawn.push_back(at::empty({3}).normal_(0, 1, generator));  // begins with the stored value
    drawn.push_back(at::Tensor(generator.get_state()).to(at::kFloat));
    return at::cat(drawn);
  };
  const at::Tensor theirs = run();
  const FastRandomGuard guard;
  EXPECT_TRUE(at::equal(run(), theirs));
}

TEST(FastRandom, ThreadsShareAGenerator) {
  const FastRandomGuard guard;
  at::Generator generator = at::detail::createCPUGenerator(1), same = at::detail::createCPUGenerator(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) at::empty({1000}).uniform_(0, 1, generator);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int j = 0; j < 200; ++j) at::empty({1000}).uniform_(0, 1, same);
  EXPECT_TRUE(at::equal(at::Tensor(generator.get_state()), at::Tensor(same.get_state())));
}

/// The message of the error, or an empty text.
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(FastRandom, ErrorsAreThoseOfLibtorch) {
  const std::vector<std::function<void()>> wrong = {
      [] { at::empty({1000}).bernoulli_(1.5); },
      [] { at::empty({1000}).bernoulli_(at::full({1000}, -0.1)); },
      [] { at::empty({1000}).bernoulli_(at::full({1000}, NAN)); },
      [] { at::empty({1000}).bernoulli_(at::full({999}, 0.1)); },
      [] { at::empty({1}).expand({1000}).bernoulli_(0.5); },
      [] { at::empty({1}).expand({1000}).uniform_(); },
      [] { at::empty({1000}).uniform_(1, 0); },
      [] { at::empty({1000}, at::kHalf).uniform_(0, 1e6); },
      [] { at::empty({1000}, at::kLong).uniform_(); },
      [] { at::empty({1000}).normal_(0, -1); },
      [] { at::empty({1000}, at::kLong).normal_(); },
      [] { at::empty({1000}, at::kByte).random_(0, 300); },
      [] { at::empty({1000}, at::kLong).random_(5, 5); },
      [] { at::randperm(-1); },
      [] { at::empty({1000}, at::kComplexFloat).bernoulli_(0.5); },
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    torch::manual_seed(1);
    const std::string theirs = error_of(wrong[i]);
    const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
    const FastRandomGuard guard;
    torch::manual_seed(1);
    EXPECT_EQ(error_of(wrong[i]), theirs) << i;
    EXPECT_NE(theirs, "") << i;
    EXPECT_TRUE(at::equal(at::Tensor(at::detail::getDefaultCPUGenerator().get_state()), state)) << i;
  }
}

}  // namespace
}  // namespace bellows::nn
