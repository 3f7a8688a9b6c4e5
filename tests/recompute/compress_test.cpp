#include "bellows/recompute/compress.h"

#include <gmock/gmock.h>

#include "bellows/tap/allocator.h"
#include "tests/recompute/support.h"
#include "tests/support/errors.h"

namespace bellows::recompute::testing {

namespace {

/// Gradients of a small convolutional net under a guard's options; without options, without a guard.
std::vector<at::Tensor> conv_gradients(const std::optional<CompressOptions>& options,
                                       CompressedBytes* bytes = nullptr) {
  torch::manual_seed(4);
  torch::nn::Sequential model(torch::nn::Conv2d(3, 16, 3), torch::nn::BatchNorm2d(16), torch::nn::ReLU(),
                              torch::nn::MaxPool2d(2), torch::nn::Conv2d(16, 16, 3), torch::nn::Tanh(),
                              torch::nn::Flatten(), torch::nn::Linear(16 * 13 * 13, 10));
  model->to(at::kFloat);
  const at::Tensor x = torch::randn({8, 3, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor loss;
  {
    std::optional<CompressGuard> guard;
    if (options) guard.emplace(*options);
    loss = torch::cross_entropy_loss(model->forward(x), torch::arange(8));
    if (bytes) *bytes = guard->bytes();
  }
  loss.backward();
  std::vector<at::Tensor> result{loss.detach()};
  for (const auto& p : model->parameters()) result.push_back(p.grad());
  return result;
}

double distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double apart = 0, size = 0;
  for (size_t i = 1; i < a.size(); ++i) {
    apart += (a[i] - b[i]).pow(2).sum().item<double>();
    size += a[i].pow(2).sum().item<double>();
  }
  return std::sqrt(apart / size);
}

}  // namespace

TEST(Compress, GradientsAreCloseAndTheLossIsTheSame) {
  const auto plain = conv_gradients({});
  const std::vector<std::pair<ActivationBits, double>> bounds{
      {ActivationBits::bf16, 0.01}, {ActivationBits::int8, 0.02}, {ActivationBits::int4, 0.3}};
  const std::vector<double> share{0.5, 0.27, 0.14};
  for (size_t i = 0; i < bounds.size(); ++i) {
    CompressedBytes bytes;
    const auto with = conv_gradients(CompressOptions{.bits = bounds[i].first, .seed = 1}, &bytes);
    EXPECT_TRUE(at::equal(plain[0], with[0]));
    EXPECT_LT(distance(plain, with), bounds[i].second) << i;
    EXPECT_GT(distance(plain, with), 0) << i;
    EXPECT_LE(static_cast<double>(bytes.after), share[i] * static_cast<double>(bytes.before));
    EXPECT_GT(bytes.before, 500000);
  }
}

TEST(Compress, TheMeanOverSeedsComesCloserToTheGradient) {
  const auto plain = conv_gradients({});
  auto mean = conv_gradients(CompressOptions{.bits = ActivationBits::int4, .seed = 100});
  const double one = distance(plain, mean);
  for (uint64_t seed = 1; seed < 25; ++seed) {
    const auto with = conv_gradients(CompressOptions{.bits = ActivationBits::int4, .seed = 100 + seed});
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += (with[i] - mean[i]) / static_cast<double>(seed + 1);
  }
  // A fifth without any bias; batch norm's product of two rounded values has a little.
  EXPECT_LT(distance(plain, mean), 0.3 * one);
}

TEST(Compress, FollowsTheSeed) {
  const CompressOptions options{.seed = 3};
  EXPECT_EQ(first_difference(conv_gradients(options), conv_gradients(options)), -1);
  EXPECT_NE(first_difference(conv_gradients(options), conv_gradients(CompressOptions{.seed = 4})), -1);
}

TEST(Compress, IsTheSameForEveryNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const auto bits : {ActivationBits::bf16, ActivationBits::int8, ActivationBits::int4}) {
    // Sums of the gradients differ with the number of threads: here there is none over several values.
    const auto gradient = [bits](int count) {
      at::set_num_threads(count);
      torch::manual_seed(7);
      const at::Tensor x = torch::randn({1 << 18}, torch::requires_grad());
      const CompressGuard guard({.bits = bits, .seed = 5});
      at::Tensor y = x;
      for (int i = 0; i < 3; ++i) y = (y * 1.5).sin() * y;
      return torch::autograd::grad({y}, {x}, {torch::ones({1 << 18})});
    };
    const auto one = gradient(1);
    EXPECT_EQ(first_difference(one, gradient(3)), -1);
    at::set_num_threads(threads);
  }
}

namespace {

/// Adds nothing, saves its input, and in backward shows what it gets back.
struct Looks : torch::autograd::Function<Looks> {
  static inline std::vector<at::Tensor> seen;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x.new_zeros({});
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list) {
    seen.push_back(context->get_saved_variables()[0]);
    return {torch::zeros_like(seen.back())};
  }
};

}  // namespace

TEST(Compress, DecodesOnceWhatIsWantedTwiceInTurn) {
  for (const bool between : {false, true}) {
    Looks::seen.clear();
    at::Tensor loss;
    {
      const CompressGuard guard({.min_size = 1, .seed = 1});
      const at::Tensor x = torch::rand({1000}, torch::requires_grad()), h = x * 2, other = x * 3;
      loss = Looks::apply(h);
      if (between) loss = loss + Looks::apply(other);
      loss = loss + Looks::apply(h);
    }
    loss.backward({}, /*keep_graph=*/true);
    const auto first = std::exchange(Looks::seen, {});
    EXPECT_EQ(first.front().data_ptr() == first.back().data_ptr(), !between);
    EXPECT_TRUE(at::equal(first.front(), first.back()));
    loss.backward();
    EXPECT_TRUE(at::equal(first.front(), Looks::seen.back()));
    Looks::seen.clear();
  }
}

/// What is wanted again only at the end of backward does not wait for it decoded.
TEST(Compress, HoldsOneDecodedTensorAtMost) {
  tap::install_cpu_allocator();
  constexpr int64_t size = 1 << 18, count = 24;
  const at::Tensor scale = torch::ones({}, torch::requires_grad());
  at::Tensor loss;
  {
    const CompressGuard guard({.seed = 1});
    std::vector<at::Tensor> h{torch::rand({size}, torch::requires_grad()) * 2};
    for (int i = 0; i < count; ++i) h.push_back(h.back().sin());
    loss = h.back().sum();
    for (const at::Tensor& one : h) loss = loss + (one.detach() * scale).sum();
  }
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  tap::reset_cpu_allocation_peak();
  loss.backward();
  EXPECT_LT(tap::cpu_allocation_counters().peak_bytes - before, 8 * 4 * size);
}

TEST(Compress, LeavesAloneWhatItShould) {
  const CompressGuard guard({.min_size = 100});
  const auto saved_exactly = [](const at::Tensor& x) {
    const at::Tensor leaf = x.detach().clone().requires_grad_();
    const at::Tensor y = (leaf * 1).exp();
    return at::equal(torch::autograd::grad({y.sum()}, {leaf})[0], y);
  };
  EXPECT_TRUE(saved_exactly(torch::rand({99})));
  EXPECT_TRUE(saved_exactly(torch::rand({200}, at::kDouble)));
  EXPECT_EQ(guard.bytes().before, 0);
  const at::Tensor x = torch::rand({10, 20}, torch::requires_grad());
  const at::Tensor index = torch::arange(10).repeat({20}), mask = x > 0.5;
  const at::Tensor y = (x * mask).index_select(0, index);
  EXPECT_EQ(guard.bytes().before, 0);  // integers, booleans, and x is a parameter
  EXPECT_FALSE(saved_exactly(torch::rand({200})));
  EXPECT_EQ(guard.bytes().before, 800);
}

TEST(Compress, KeepsLayoutsAndDtypes) {
  const CompressGuard guard({.min_size = 1});
  for (const at::Tensor& x :
       {torch::rand({3, 5, 7}).to(at::kBFloat16).transpose(0, 2), torch::rand({64, 10}).slice(1, 0, 10, 3),
        torch::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast).to(at::kHalf),
        torch::rand({40, 1}).expand({40, 9})}) {
    const at::Tensor w = torch::ones(x.sizes(), x.options()).requires_grad_();
    const auto g = torch::autograd::grad({(w * x).sum()}, {w})[0];
    EXPECT_EQ(g.scalar_type(), x.scalar_type());
    EXPECT_TRUE(at::allclose(g, x, 0.02, 0.02));
  }
}

TEST(Compress, OverflowReachesTheGradient) {
  const CompressGuard guard;
  const at::Tensor x = torch::rand({5000}, torch::requires_grad());
  at::Tensor scale = torch::ones({5000});
  scale[4000] = std::numeric_limits<float>::infinity();
  const auto g = torch::autograd::grad({(x * scale).sum()}, {x})[0];
  EXPECT_FALSE(g.isfinite().all().item<bool>());
}

TEST(Compress, TogetherWithCheckpoint) {
  torch::manual_seed(5);
  const at::Tensor x = torch::randn({64, 128}, torch::requires_grad());
  const at::Tensor w = (torch::randn({128, 128}) * 0.05).requires_grad_();
  const auto f = [w](const at::Tensor& y) { return y.mm(w).tanh(); };
  const auto gradients = [&](bool around, bool inside) {
    std::optional<CompressGuard> outer;
    if (around) outer.emplace(CompressOptions{.seed = 1});
    const auto block = [f, inside](const at::Tensor& y) {
      std::optional<CompressGuard> inner;
      if (inside) inner.emplace(CompressOptions{.seed = 2});
      return f(f(y * 1) + y);
    };
    const at::Tensor loss = checkpoint(block, checkpoint(block, x)).pow(2).sum();
    return torch::autograd::grad({loss}, {x, w});
  };
  const auto plain = gradients(false, false);
  for (const auto& [around, inside] : {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
    const auto with = gradients(around, inside);
    EXPECT_LT((plain[1] - with[1]).norm().item<double>(), 0.03 * plain[1].norm().item<double>());
    EXPECT_FALSE(at::equal(plain[1], with[1]));
  }
}

TEST(Compress, OptionsOutOfRange) {
  EXPECT_THAT(message_of([] { CompressGuard({.group = 48 + 1}); }), ::testing::HasSubstr("got 49"));
  EXPECT_THAT(message_of([] { CompressGuard({.group = 2048}); }), ::testing::HasSubstr("got 2048"));
  EXPECT_THAT(message_of([] { CompressGuard({.min_size = -1}); }), ::testing::HasSubstr("min_size"));
}

TEST(Compress, WhatIsNamedIsLeftAlone) {
  const at::Tensor frozen = torch::randn({128, 128}), x = torch::randn({64, 128}, torch::requires_grad());
  const auto kept = [&](const std::vector<at::Tensor>& leave) {
    at::Tensor loss;
    const OffloadGuard outer({.min_bytes = 1, .leave = leave});
    const CompressGuard guard({.seed = 1, .leave = leave});
    loss = x.mm(frozen.t()).sum();  // saves a view of the weight alone
    outer.wait();
    const std::pair<int64_t, int64_t> bytes(guard.bytes().before, outer.stats().bytes);
    const bool exact = at::equal(torch::autograd::grad({loss}, {x})[0], torch::ones({64, 128}).mm(frozen));
    EXPECT_EQ(exact, !leave.empty());
    return bytes;
  };
  EXPECT_EQ(kept({}).first, 4 * 128 * 128);
  EXPECT_EQ(kept({at::Tensor(), frozen.view({-1})}), (std::pair<int64_t, int64_t>(0, 0)));
}

}  // namespace bellows::recompute::testing
