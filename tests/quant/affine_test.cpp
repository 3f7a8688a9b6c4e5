#include "bellows/quant/affine.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

#include "bellows/quant/rows.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace bellows::quant {

namespace {

using testing::HasSubstr;

/// Ten times a uniform number in [−1, 1), printed with four digits.
at::Tensor printed_values() {
  return torch::tensor({{-6.4938, 7.5907, 7.4472, -2.5390, 5.1757},
                        {-6.4978, -3.0276, 7.2343, 6.0056, -9.1232},
                        {5.4574, -5.8731, -6.1708, 7.3719, -0.0546},
                        {0.1817, -0.1734, -4.3979, 8.4719, -6.0725},
                        {-3.4074, 1.9902, -0.0503, 3.0557, -7.3558}});
}

at::Tensor printed_integers() {
  return torch::tensor({{38, 242, 240, 95, 207},
                        {38, 88, 237, 219, 0},
                        {211, 47, 43, 239, 131},
                        {135, 129, 68, 255, 44},
                        {83, 161, 131, 176, 25}})
      .to(at::kByte);
}

Parameters per_tensor(double scale, int64_t zero_point) {
  return {.scale = torch::tensor(static_cast<float>(scale)), .zero_point = torch::tensor(zero_point, at::kInt)};
}

}  // namespace

// The printed values are rounded, so their scale differs from the printed scale in the fifth digit. The integers do not.
TEST(Affine, QuantizesTheWorkedExample) {
  const at::Tensor x = printed_values();
  const Parameters ours = choose_parameters(x, Scheme{});
  EXPECT_FLOAT_EQ(ours.scale.item<float>(), 0.0690003922F);
  EXPECT_EQ(ours.zero_point.item<int>(), 132);
  for (const Parameters& parameters : {ours, per_tensor(0.06900028901941636, 132)}) {
    const QuantizedTensor quantized = quantize(x, parameters, Scheme{});
    EXPECT_TRUE(quantized.values.equal(printed_integers())) << quantized.values;
    EXPECT_LE((quantized.dequantize() - x).abs().max().item<float>(), 0.0690004F / 2);
  }
  const at::Tensor dequantized = quantize(x, per_tensor(0.06900028901941636, 132), Scheme{}).dequantize();
  EXPECT_NEAR(dequantized[0][0].item<float>(), -6.4860, 5e-5);
  EXPECT_NEAR(dequantized[3][3].item<float>(), 8.4870, 5e-5);
}

TEST(Affine, ParametersAreThoseOfPyTorch) {
  const Golden golden("quant/parameters.safetensors");
  int cases = 0;
  for (const char* kind : {"normal", "positive", "negative", "zero", "outlier"}) {
    const at::Tensor x = golden(c10::str(kind, ".x"));
    for (int bits = 1; bits <= 8; ++bits) {
      for (const bool is_signed : {false, true}) {
        for (const bool symmetric : {false, true}) {
          for (const auto granularity : {Granularity::tensor, Granularity::channel}) {
            const std::string name =
                c10::str(kind, is_signed ? ".int" : ".uint", bits, symmetric ? ".symmetric" : ".affine",
                         granularity == Granularity::channel ? ".channel" : ".tensor");
            SCOPED_TRACE(name);
            const Parameters got = choose_parameters(
                x, {.bits = bits, .is_signed = is_signed, .symmetric = symmetric, .granularity = granularity});
            EXPECT_TRUE(got.scale.flatten().equal(golden(name + ".scale").flatten()));
            EXPECT_TRUE(got.zero_point.flatten().equal(golden(name + ".zero_point").flatten()));
            ++cases;
          }
        }
      }
    }
  }
  EXPECT_EQ(cases, 5 * 8 * 8);
}

TEST(Affine, IntegersAreThoseOfPyTorch) {
  const Golden golden("quant/integers.safetensors");
  const at::Tensor x = golden("x");
  const struct {
    const char* name;
    double scale;
    int64_t zero_point;
  } cases[] = {{"half", 0.5, 12}, {"odd", 0.0690003922, 132}, {"coarse", 1.7, 0}};
  for (const auto& [name, scale, zero_point] : cases) {
    SCOPED_TRACE(name);
    const std::string prefix = name;
    EXPECT_TRUE(quantize(x, per_tensor(scale, zero_point), {}).values.equal(golden(prefix + ".uint8")));
    EXPECT_TRUE(quantize(x, per_tensor(scale, 3), {.is_signed = true}).values.equal(golden(prefix + ".int8")));
    EXPECT_TRUE(fake_quantize(x, per_tensor(scale, zero_point), {}).equal(golden(prefix + ".fake")));
  }
}

TEST(Affine, ChannelsAndGradientsAreThoseOfPyTorch) {
  const Golden golden("quant/integers.safetensors");
  const Scheme scheme{.is_signed = true, .granularity = Granularity::channel};
  const Parameters parameters{golden("channel.scale"), golden("channel.zero_point")};
  const QuantizedTensor quantized = quantize(golden("x"), parameters, scheme);
  EXPECT_TRUE(quantized.values.equal(golden("channel.int8")));
  EXPECT_TRUE(quantized.dequantize().equal(golden("channel.dequantized")));

  at::Tensor x = golden("x").clone().requires_grad_();
  (fake_quantize(x, parameters, scheme) * golden("weight")).sum().backward();
  EXPECT_TRUE(x.grad().equal(golden("channel.fake_grad")));

  x = golden("x").clone().requires_grad_();
  const at::Tensor scale = parameters.scale.clone().requires_grad_();
  const at::Tensor y = learned_fake_quantize(x, scale, parameters.zero_point, scheme, 0.25);
  (y * golden("weight")).sum().backward();
  EXPECT_TRUE(y.equal(golden("learned.y")));
  EXPECT_TRUE(x.grad().equal(golden("learned.x_grad")));
  EXPECT_TRUE(at::allclose(scale.grad(), golden("learned.scale_grad"), 1e-5, 0));
}

// Every granularity is per-tensor quantization of the parts that share a scale.
TEST(Affine, GranularitiesAreQuantizedPartByPart) {
  at::manual_seed(3);
  const at::Tensor x = torch::randn({4, 6, 8});
  const auto part = [&](const QuantizedTensor& whole, const at::Tensor& values, const at::Tensor& integers) {
    Scheme scheme = whole.scheme;
    scheme.granularity = Granularity::tensor;
    EXPECT_TRUE(quantize(values, scheme).values.equal(integers));
  };
  const QuantizedTensor channel = quantize(x, {.bits = 5, .granularity = Granularity::channel, .axis = -2});
  EXPECT_EQ(channel.parameters.scale.sizes(), at::IntArrayRef({6}));
  part(channel, x.select(1, 4), channel.values.select(1, 4));
  const QuantizedTensor token = quantize(x, {.bits = 3, .is_signed = true, .granularity = Granularity::token});
  EXPECT_EQ(token.parameters.scale.sizes(), at::IntArrayRef({4, 6}));
  part(token, x[2][5], token.values[2][5]);
  const QuantizedTensor group = quantize(x, group_scheme(4, 4));
  EXPECT_EQ(group.parameters.scale.sizes(), at::IntArrayRef({4, 6, 2}));
  part(group, x[3][1].slice(0, 4), group.values[3][1].slice(0, 4));
}

TEST(Affine, ErrorsShrinkWithEachBit) {
  at::manual_seed(4);
  const at::Tensor x = torch::randn({64, 128});
  double before = -100;
  for (int bits = 2; bits <= 8; ++bits) {
    const double now = sqnr(x, quantize(x, weight_scheme(bits)).dequantize());
    EXPECT_GT(now, before + 4) << bits << " bits";  // about 6 dB a bit
    before = now;
  }
  EXPECT_EQ(sqnr(x, x), std::numeric_limits<double>::infinity());
}

TEST(Affine, SaturatesOutliersAndInfiniteValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor x = torch::tensor({-inf, -1e30F, 0.F, 1e30F, inf});
  EXPECT_TRUE(quantize(x, per_tensor(0.1, 10), {}).values.equal(torch::tensor({0, 0, 10, 255, 255}).to(at::kByte)));
}

TEST(Affine, FakeQuantizationSaturates) {
  at::Tensor x = torch::tensor({-1e30F, 0.F, 1e30F}).requires_grad_();
  const at::Tensor y = fake_quantize(x, per_tensor(0.5, 10), {});
  y.sum().backward();
  EXPECT_TRUE(y.equal(torch::tensor({-5.F, 0.F, 122.5F})));
  EXPECT_TRUE(x.grad().equal(torch::tensor({0.F, 1.F, 0.F})));
}

TEST(Affine, ConstantAndZeroChannelsKeepTheirValues) {
  const at::Tensor x = at::stack({at::zeros({5}), at::full({5}, 3.0), at::full({5}, -0.25)});
  const Scheme affine{.is_signed = true, .granularity = Granularity::channel};
  EXPECT_TRUE(at::allclose(quantize(x, affine).dequantize(), x, 1e-6, 0));
  // PyTorch's symmetric scale is 1/127.5 of the largest magnitude, and the largest integer is 127.
  EXPECT_TRUE(at::allclose(quantize(x, weight_scheme()).dequantize(), x, 0.51 / 127.5, 0));
}

TEST(Affine, RejectsBadInput) {
  const at::Tensor x = torch::randn({4, 10});
  const auto error_with = [&](const at::Tensor& values, const Scheme& scheme) {
    return message_of([&] { quantize(values, scheme); });
  };
  EXPECT_THAT(error_with(x, {.bits = 9}), HasSubstr("expected 1 to 8 bits, got 9"));
  EXPECT_THAT(error_with(x, {.bits = 1, .narrow_range = true}), HasSubstr("Use at least 2 bits"));
  EXPECT_THAT(error_with(x, group_scheme(4, 4)), HasSubstr("multiple of the group size 4, got the shape [4, 10]"));
  EXPECT_THAT(error_with(x, group_scheme(4, 0)), HasSubstr("group size of at least 1, got 0"));
  EXPECT_THAT(error_with(x, {.granularity = Granularity::channel, .axis = 2}), HasSubstr("a tensor with dim 2"));
  EXPECT_THAT(error_with(at::zeros({0, 3}), {}), HasSubstr("a tensor with values, got the shape [0, 3]"));
  EXPECT_THAT(error_with(x.to(at::kLong), {}), HasSubstr("floating-point tensor, got Long"));
  EXPECT_THAT(error_with(x / 0 * 0, {}), HasSubstr("Check the data for NaN"));
  EXPECT_THAT(message_of([&] { quantize(x / 0 * 0, per_tensor(1, 0), {}); }), HasSubstr("contains NaN"));
  EXPECT_THAT(message_of([&] { quantize(x, per_tensor(1, 0), weight_scheme()); }),
              HasSubstr("scales and zero points of shape [4] for a tensor of shape [4, 10]"));
}

}  // namespace bellows::quant
