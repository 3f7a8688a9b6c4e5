#include "bellows/kernels/group_quantization.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

namespace bellows::recompute::testing {

namespace {

using kernels::GroupQuantization;

struct Coded {
  std::vector<uint8_t> codes;
  std::vector<float> ranges;
  at::Tensor back;
};

Coded coded(const at::Tensor& x, int bits, int64_t group, uint64_t seed, bool reference) {
  GroupQuantization args{.dtype = x.scalar_type(), .size = x.numel(), .group = group, .bits = bits, .seed = seed};
  Coded result{std::vector<uint8_t>(static_cast<size_t>(args.codes_bytes()), 0xAA),
               std::vector<float>(static_cast<size_t>(2 * args.groups())), at::empty_like(x)};
  args.codes = result.codes.data();
  args.ranges = result.ranges.data();
  if (reference) {
    kernels::ref::quantize_groups(args, x.const_data_ptr());
    kernels::ref::dequantize_groups(args, result.back.mutable_data_ptr());
  } else {
    kernels::quantize_groups(args, x.const_data_ptr());
    kernels::dequantize_groups(args, result.back.mutable_data_ptr());
  }
  return result;
}

}  // namespace

TEST(GroupQuantization, EqualTheReference) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t size : {1, 15, 31, 33, 255, 256, 257, 5000, 70001}) {
      const at::Tensor normal = (torch::randn({size}) * 3 + 1).to(dtype);
      const at::Tensor x = size % 2 == 0 ? normal.relu() : normal;
      for (const int64_t group : {32, 96, 256, 1024}) {
        for (const int bits : {8, 4}) {
          const Coded fast = coded(x, bits, group, 7, false), plain = coded(x, bits, group, 7, true);
          EXPECT_EQ(fast.codes, plain.codes) << size << " " << group << " " << bits;
          EXPECT_EQ(fast.ranges, plain.ranges);
          // The last operation may be fused, and then rounded to dtype.
          const double unit = dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 1e-3 : 8e-3;
          EXPECT_TRUE(at::allclose(fast.back, plain.back, unit, unit)) << size << " " << group << " " << bits;
        }
      }
    }
  }
}

TEST(GroupQuantization, ErrorsAreBelowOneStepAndTheSmallestValueIsExact) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({64, 256}).relu();
  const at::Tensor width = x.amax(1, true) - x.amin(1, true);
  for (const int bits : {8, 4}) {
    const at::Tensor back = coded(x.flatten(), bits, 256, 3, false).back.view({64, 256});
    EXPECT_TRUE(((back - x).abs() <= width / ((1 << bits) - 2) * 1.0001).all().item<bool>());
    EXPECT_TRUE(at::equal(back > 0, x > 0)) << "the mask of a ReLU";
    EXPECT_TRUE((back.masked_select(x == 0) == 0).all().item<bool>());
    EXPECT_TRUE(at::equal(coded(torch::full({300}, 1.7), bits, 256, 3, false).back, torch::full({300}, 1.7)));
  }
}

TEST(GroupQuantization, RoundingIsUnbiasedAndFollowsTheSeed) {
  torch::manual_seed(3);
  const at::Tensor x = torch::cat({torch::rand({512}), torch::rand({512}).sub_(0.2).relu_()});
  const int rounds = 4000;
  for (const int bits : {8, 4}) {
    at::Tensor sum = torch::zeros({1024}, at::kDouble);
    for (int i = 0; i < rounds; ++i) sum += coded(x, bits, 256, static_cast<uint64_t>(i), false).back;
    const double step = 1.0 / ((1 << bits) - 2);
    // Each rounding has a standard deviation of at most half a step; six of them for the mean's, over 1024 values.
    const double bound = 6 * step / 2 / std::sqrt(rounds);
    EXPECT_LT((sum / rounds - x).abs().max().item<double>(), bound + 2e-5 * step);
    // Neighbours and groups are independent: the mean over all values is as much closer.
    EXPECT_LT(std::abs((sum / rounds - x).mean().item<double>()), bound / 32 + 2e-5 * step);
    EXPECT_EQ(coded(x, bits, 256, 1, false).codes, coded(x, bits, 256, 1, false).codes);
    EXPECT_NE(coded(x, bits, 256, 1, false).codes, coded(x, bits, 256, 2, false).codes);
  }
}

TEST(GroupQuantization, ValuesThatAreNotFiniteStayVisible) {
  const float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  for (const bool reference : {false, true}) {
    for (const float bad : {infinity, -infinity, std::nanf("")}) {
      at::Tensor x = torch::ones({512});
      x[300] = bad;
      const at::Tensor back = coded(x, 8, 256, 1, reference).back;
      EXPECT_TRUE(back.slice(0, 256).isnan().all().item<bool>());
      EXPECT_TRUE(at::equal(back.slice(0, 0, 256), x.slice(0, 0, 256)));
    }
    EXPECT_TRUE(coded(torch::tensor({-largest, largest}), 8, 32, 1, reference).back.isnan().all().item<bool>());
    EXPECT_TRUE(at::equal(coded(torch::tensor({0.0F, 1e-40F}), 8, 32, 1, reference).back, torch::zeros({2})));
    EXPECT_TRUE(at::equal(coded(torch::tensor({largest, largest}), 4, 32, 1, reference).back,
                          torch::tensor({largest, largest})));
  }
}

}  // namespace bellows::recompute::testing
