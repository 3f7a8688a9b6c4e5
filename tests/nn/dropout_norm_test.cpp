#include "bellows/nn/dropout_norm.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/kernels/dropout_norm.h"
#include "bellows/nn/norm.h"
#include "tests/nn/gradcheck.h"
#include "tests/nn/memory.h"
#include "tests/nn/targets.h"
#include "tests/support/errors.h"

namespace bellows::nn {

namespace {

using testing::HasSubstr;

/// All that one forward and one backward pass read and write.
struct DropoutNormData {
  DropoutNormData(at::ScalarType dtype, int64_t rows, int64_t columns, bool center, bool own_gradient) {
    at::manual_seed(3);
    const at::ScalarType sums = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto random = [&] { return torch::randn({rows, columns}, at::kDouble).to(dtype); };
    x = random();
    x += x.sign();  // what is kept changes the sum in every dtype
    residual = random();
    dy = random();
    if (own_gradient) dsum = random();
    weight = torch::randn({columns}, sums);
    for (at::Tensor* t : {&sum, &y, &dx, &dresidual}) *t = torch::full_like(x, -7);
    for (at::Tensor* t : {&dweight, &dbias}) *t = torch::full({columns}, -7, sums);
    rstd = torch::full({rows}, -7, sums);
    if (center) mean = torch::full({rows}, -7, sums);
  }

  static void* at(const at::Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }
  kernels::DropoutNormForward forward() const {
    return {{x.scalar_type(), x.size(0), x.size(1), 1e-5, nullptr, at(weight), nullptr, at(y), at(mean), at(rstd)},
            dropout,
            at(x),
            at(residual),
            at(sum)};
  }
  kernels::DropoutNormBackward backward() const {
    return {{x.scalar_type(), x.size(0), x.size(1), at(dy), at(sum), at(weight), at(mean), at(rstd), at(dresidual),
             at(dweight), at(dbias)},
            dropout,
            at(dsum),
            at(dx)};
  }
  std::vector<at::Tensor> results() const { return {sum, y, rstd, dresidual, dx, dweight, dbias}; }

  kernels::DropoutMask dropout{12345, 0.3};
  at::Tensor x, residual, dy, dsum, weight, sum, y, mean, rstd, dx, dresidual, dweight, dbias;
};

/// What dropout multiplies by, found from the outside.
at::Tensor mask_of(uint64_t seed, at::IntArrayRef sizes, double p) {
  at::manual_seed(seed);
  const at::Tensor ones = torch::ones(sizes, at::kDouble).requires_grad_();
  return dropout_add_norm_sum(ones, torch::zeros_like(ones), {}, {}, {.p = p}).second.detach();
}

}  // namespace

TEST(DropoutNormKernel, EqualsTheReferenceOnEveryTarget) {
  for_each_target([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>(1, 1), {3, 15}, {33, 64}, {40, 257}}) {
        for (const bool flag : {true, false}) {
          SCOPED_TRACE(c10::str(dtype, " ", rows, " x ", columns, " ", flag));
          const DropoutNormData ours(dtype, rows, columns, flag, flag), reference(dtype, rows, columns, flag, flag);
          kernels::dropout_norm_forward(ours.forward());
          kernels::ref::dropout_norm_forward(reference.forward());
          EXPECT_TRUE(torch::equal(ours.sum.eq(ours.residual), reference.sum.eq(reference.residual))) << "the mask";
          kernels::dropout_norm_backward(ours.backward());
          kernels::ref::dropout_norm_backward(reference.backward());
          const double tolerance = dtype == at::kDouble  ? 1e-11
                                   : dtype == at::kFloat ? 3e-5
                                   : dtype == at::kHalf  ? 4e-3
                                                         : 3e-2;
          const auto a = ours.results(), b = reference.results();
          for (size_t i = 0; i < a.size(); ++i) {
            const double scale = i >= 5 ? std::sqrt(static_cast<double>(rows) + 1) : 1;
            EXPECT_TRUE(at::allclose(a[i].to(at::kDouble), b[i].to(at::kDouble), tolerance, tolerance * scale)) << i;
          }
        }
      }
    }
  });
}

// Share, and correlations between neighbours, rows and seeds: standard deviations are 1 / √n, so 4 of them.
TEST(DropoutNorm, MaskIsAsRandomAsItShouldBe) {
  for (const double p : {0.1, 0.5}) {
    const at::Tensor mask = mask_of(1, {512, 768}, p), dropped = mask.eq(0).to(at::kDouble) - p;
    const double n = static_cast<double>(mask.numel()), sigma = std::sqrt(p * (1 - p) / n);
    EXPECT_NEAR(dropped.mean().item<double>(), 0, 4 * sigma);
    EXPECT_TRUE(at::allclose(mask.masked_select(mask.ne(0)), torch::full({1}, 1 / (1 - p), at::kDouble)));
    EXPECT_LT(dropped.mean(0).abs().max().item<double>(), 5 * std::sqrt(p * (1 - p) / 512));
    EXPECT_LT(dropped.mean(1).abs().max().item<double>(), 5 * std::sqrt(p * (1 - p) / 768));
    const auto correlation = [&](const at::Tensor& a, const at::Tensor& b) {
      return (a * b).mean().item<double>() / (p * (1 - p));
    };
    const double noise = 4 / std::sqrt(n);
    for (const int64_t by : {1, 2, 64}) {
      EXPECT_NEAR(correlation(dropped.slice(1, by), dropped.slice(1, 0, 768 - by)), 0, 1.2 * noise) << by;
      EXPECT_NEAR(correlation(dropped.slice(0, by), dropped.slice(0, 0, 512 - by)), 0, 1.2 * noise) << by;
    }
    EXPECT_NEAR(correlation(dropped, mask_of(2, {512, 768}, p).eq(0).to(at::kDouble) - p), 0, noise);
  }
}

TEST(DropoutNorm, EqualsTheCompositionWithTheSameMask) {
  const std::vector<int64_t> sizes = {3, 5, 17};
  const at::Tensor mask = mask_of(9, sizes, 0.3);
  at::manual_seed(8);
  const auto random = [](at::IntArrayRef shape) { return torch::randn(shape, at::kDouble).requires_grad_(); };
  const at::Tensor x = random(sizes), residual = random(sizes), w = random({17}), b = random({17});
  for (const bool center : {true, false}) {
    const at::Tensor bias = center ? b : at::Tensor();
    at::manual_seed(9);
    const auto [y, sum] = dropout_add_norm_sum(x, residual, w, bias, {.p = 0.3, .center = center});
    const at::Tensor sum2 = residual + x * mask;
    const at::Tensor y2 = center ? at::layer_norm(sum2, {17}, w, b) : at::rms_norm(sum2, {17}, w, 1e-5);
    EXPECT_TRUE(at::allclose(y, y2, 1e-12, 1e-12));
    torch::autograd::variable_list inputs = {x, residual, w};
    if (center) inputs.push_back(b);
    const auto ours = torch::autograd::grad({y.sin().sum() + sum.cos().sum()}, inputs);
    const auto theirs = torch::autograd::grad({y2.sin().sum() + sum2.cos().sum()}, inputs);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-11, 1e-12)) << i;
  }
  EXPECT_TRUE(gradcheck(
      [](const GradcheckInputs& t) {
        at::manual_seed(2);
        return dropout_add_norm(t[0], t[1], t[2], t[3], {.p = 0.3});
      },
      {x.detach().slice(2, 0, 6).contiguous(), residual.detach().slice(2, 0, 6).contiguous(),
       torch::randn({6}, at::kDouble), torch::randn({6}, at::kDouble)}));
}

TEST(DropoutNorm, WithoutDropoutIsTheNormOfTheSum) {
  const at::Tensor x = torch::randn({4, 9}), residual = torch::randn({4, 9}), w = torch::randn({9});
  const at::Tensor expected = layer_norm(residual + x, {9}, w);
  at::manual_seed(1);
  EXPECT_TRUE(torch::equal(dropout_add_norm(x, residual, w, {}, {.p = 0}), expected));
  EXPECT_TRUE(torch::equal(dropout_add_norm(x, residual, w, {}, {.training = false}), expected));
  const at::Tensor next = torch::rand({3});
  at::manual_seed(1);
  EXPECT_TRUE(torch::equal(torch::rand({3}), next)) << "nothing is drawn for nothing";
}

TEST(DropoutNorm, FollowsTheGeneratorAndNotTheThreads) {
  const at::Tensor x = torch::randn({300, 257}), residual = torch::randn({300, 257});
  const int threads = at::get_num_threads();
  const auto result = [&](int count) {
    at::set_num_threads(count);
    at::manual_seed(4);
    return dropout_add_norm(x, residual);
  };
  const at::Tensor one = result(1), three = result(3), other = dropout_add_norm(x, residual);
  at::set_num_threads(threads);
  EXPECT_TRUE(torch::equal(one, three));
  EXPECT_FALSE(torch::equal(one, other));
}

TEST(DropoutNorm, KeepsNoMask) {
  const at::Tensor x = torch::randn({64, 96}).requires_grad_() * 1,
                   residual = torch::randn({64, 96}).requires_grad_() * 1;
  const at::Tensor w = torch::ones({96}).requires_grad_();
  EXPECT_EQ(kept_bytes([&] { return dropout_add_norm(x, residual, w); }), 64 * 96 * 4 + 64 * 8);
  EXPECT_GT(kept_bytes([&] { return layer_norm(at::dropout(x, 0.1, true) + residual, {96}, w); }), 64 * 96 * 5);
}

TEST(DropoutNorm, TakesTheWiderOfTwoDtypes) {
  const at::Tensor x = torch::randn({4, 9}).to(at::kBFloat16).requires_grad_(),
                   residual = torch::randn({4, 9}).requires_grad_();
  const at::Tensor y = dropout_add_norm(x, residual);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  y.square().sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(residual.grad().scalar_type(), at::kFloat);
}

TEST(DropoutNorm, RefusesWhatDoesNotFit) {
  const at::Tensor x = torch::randn({4, 6}), w = torch::ones({6});
  EXPECT_THAT(message_of([&] {
                dropout_add_norm(x, torch::randn({4, 5}));
              }),
              HasSubstr("expected a residual with the shape and device of the input, [4, 6] on cpu"));
  EXPECT_THAT(message_of([&] { dropout_add_norm(x, x, {}, {}, {.p = 1}); }), HasSubstr("expected p in [0, 1), got 1"));
  EXPECT_THAT(message_of([&] { dropout_add_norm(x, x, torch::ones({5})); }),
              HasSubstr("dropout_add_norm: expected weight of normalized_shape [6]"));
  EXPECT_THAT(message_of([&] { dropout_add_norm(x, x, {}, w, {.center = false}); }), HasSubstr("no bias for RMSNorm"));
  const at::Tensor leaf = x.clone().requires_grad_();
  EXPECT_THAT(message_of([&] {
                torch::autograd::grad({dropout_add_norm(leaf, x).sum()}, {leaf}, {}, true, /*create_graph=*/true);
              }),
              HasSubstr("double backward (create_graph) is not supported"));
}

}  // namespace bellows::nn
