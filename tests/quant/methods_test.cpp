// Methods that choose the quantized weight of one layer.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bellows/quant/affine.h"
#include "bellows/quant/methods/auto_round.h"
#include "bellows/quant/methods/awq.h"
#include "bellows/quant/methods/bias_correction.h"
#include "bellows/quant/methods/equalization.h"
#include "bellows/quant/methods/gptq.h"
#include "bellows/quant/methods/hqq.h"
#include "bellows/quant/methods/input_statistics.h"
#include "bellows/quant/methods/smooth_quant.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace bellows::quant {

namespace {

using testing::HasSubstr;

struct Layer {
  at::Tensor weight, x;
  InputStatistics inputs;
};

InputStatistics statistics_of(const at::Tensor& x) {
  InputStatistics inputs(x.size(-1));
  inputs.add(x);
  return inputs;
}

/// A layer with correlated inputs: 16 directions and noise, some features larger than others, and a mean.
Layer correlated_layer(uint64_t seed, int64_t out = 96, int64_t in = 128, int64_t tokens = 512) {
  at::manual_seed(seed);
  const at::Tensor mixed = torch::randn({tokens, 16}).matmul(torch::randn({16, in})) + torch::randn({tokens, in});
  const at::Tensor x = mixed * (torch::rand({in}) * 2).exp() + torch::randn({in});
  return {torch::randn({out, in}) * 0.05, x, statistics_of(x)};
}

double error_of(const Layer& layer, const QuantizedTensor& quantized) {
  return output_error(layer.weight - quantized.dequantize(), layer.inputs);
}

double error_of(const Layer& layer, const AwqWeight& quantized) {
  return output_error(layer.weight - quantized.weight.dequantize() / quantized.scales, layer.inputs);
}

Scheme grouped(int bits, bool symmetric, int64_t group_size) {
  return {.bits = bits,
          .is_signed = symmetric,
          .symmetric = symmetric,
          .granularity = Granularity::group,
          .group_size = group_size};
}

Scheme per_channel(int bits, bool symmetric) {
  return {.bits = bits, .is_signed = symmetric, .symmetric = symmetric, .granularity = Granularity::channel};
}

/// The number of rows whose integers differ. The references store unsigned integers.
int64_t rows_that_differ(const QuantizedTensor& ours, const at::Tensor& expected) {
  const int64_t offset = ours.scheme.is_signed ? 1 << (ours.scheme.bits - 1) : 0;
  return (ours.values.to(at::kInt) + offset).ne(expected.to(at::kInt)).any(1).sum().item<int64_t>();
}

using Rounder = std::function<QuantizedTensor(const at::Tensor&, const InputStatistics&, const Scheme&)>;

std::vector<std::pair<std::string, Rounder>> methods() {
  const auto of_gptq = [](const at::Tensor& w, const InputStatistics& x, const Scheme& s) { return gptq(w, x, s); };
  const auto sorted = [](const at::Tensor& w, const InputStatistics& x, const Scheme& s) {
    return gptq(w, x, s, {.activation_order = true});
  };
  const auto of_awq = [](const at::Tensor& w, const InputStatistics& x, const Scheme& s) {
    return awq(w, x, s).weight;
  };
  const auto of_hqq = [](const at::Tensor& w, const InputStatistics&, const Scheme& s) { return hqq(w, s); };
  const auto rounded = [](const at::Tensor& w, const InputStatistics& x, const Scheme& s) {
    return auto_round(w, x, s, {.steps = 20});
  };
  return {{"gptq", of_gptq}, {"gptq", sorted}, {"awq", of_awq}, {"hqq", of_hqq}, {"auto_round", rounded}};
}

}  // namespace

TEST(InputStatistics, AreThoseOfAllBatchesTogether) {
  at::manual_seed(1);
  const at::Tensor x = torch::randn({6, 5, 7}) + 0.5;
  InputStatistics inputs(7);
  inputs.add(x.slice(0, 0, 1));
  inputs.add(at::zeros({0, 7}));
  inputs.add(x.slice(0, 1));
  const at::Tensor rows = x.reshape({-1, 7});
  EXPECT_EQ(inputs.tokens(), 30);
  EXPECT_TRUE(at::allclose(inputs.second_moment(), (rows.t().matmul(rows) / 30).to(at::kDouble), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(inputs.mean(), rows.mean(0), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(inputs.mean_abs(), rows.abs().mean(0), 1e-5, 1e-6));
  EXPECT_TRUE(inputs.max_abs().equal(rows.abs().amax(0)));

  const at::Tensor scales = torch::rand({7}) + 0.5;
  const InputStatistics divided = inputs.divided_by(scales), expected = statistics_of(rows / scales);
  EXPECT_TRUE(at::allclose(divided.second_moment(), expected.second_moment(), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(divided.mean(), expected.mean(), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(divided.mean_abs(), expected.mean_abs(), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(divided.max_abs(), expected.max_abs(), 1e-5, 1e-6));
}

TEST(InputStatistics, PredictTheErrorOfTheOutputs) {
  const Layer layer = correlated_layer(2);
  const at::Tensor difference = layer.weight - quantize(layer.weight, weight_scheme(4)).dequantize();
  const double expected = layer.x.matmul(difference.t()).to(at::kDouble).square().mean().item<double>();
  EXPECT_NEAR(output_error(difference, layer.inputs) / expected, 1, 1e-4);
}

TEST(InputStatistics, RejectBadInput) {
  EXPECT_THAT(message_of([] { InputStatistics(0); }), HasSubstr("at least one feature, got 0"));
  InputStatistics inputs(4);
  EXPECT_THAT(message_of([&] { inputs.second_moment(); }), HasSubstr("no inputs were added for the 4 features"));
  EXPECT_THAT(message_of([&] { inputs.add(at::ones({2, 3})); }), HasSubstr("shape [*, 4], got Float [2, 3]"));
  EXPECT_THAT(message_of([&] { inputs.add(at::ones({4}, at::kLong)); }), HasSubstr("floating-point inputs"));
  at::Tensor x = at::ones({3, 4});
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 1e30F}) {
    x[1][2] = bad;
    EXPECT_THAT(message_of([&] { inputs.add(x); }), HasSubstr("1 of 4 features have values that are NaN, infinite"));
  }
  EXPECT_EQ(inputs.tokens(), 0);
  EXPECT_THAT(message_of([&] {
                statistics_of(at::ones({2, 4})).divided_by(at::zeros({4}));
              }),
              HasSubstr("positive scales of shape [4]"));
  EXPECT_THAT(message_of([&] { output_error(at::ones({2, 3}), inputs); }), HasSubstr("[out, 4], got [2, 3]"));
}

// The original computes the inverse of the Hessian in fp32. A weight close to the middle between two integers may therefore
// be rounded to the other one, which changes the columns after it in the same row.
TEST(Gptq, IntegersAreThoseOfTheOriginal) {
  const Golden golden("quant/methods.safetensors");
  const at::Tensor weight = golden("weight");
  const InputStatistics inputs = statistics_of(golden("x").to(at::kFloat));
  struct Case {
    std::string name;
    Scheme scheme;
    bool activation_order = false;
  };
  for (const Case& one :
       {Case{"gptq.int4.group", grouped(4, true, 64)}, Case{"gptq.uint4.group", grouped(4, false, 96)},
        Case{"gptq.uint3.channel", per_channel(3, false)}, Case{"gptq.int8.channel", per_channel(8, true)},
        Case{"gptq.uint4.order", grouped(4, false, 64), true}, Case{"gptq.int2.order", per_channel(2, true), true}}) {
    const QuantizedTensor ours = gptq(weight, inputs, one.scheme, {.activation_order = one.activation_order});
    EXPECT_LE(rows_that_differ(ours, golden(one.name + ".integers")), 2) << one.name << ", of 40 rows";
    const at::Tensor scale = golden(one.name + ".scale").view_as(ours.parameters.scale);
    EXPECT_LE((ours.parameters.scale / scale - 1).abs().median().item<float>(), 1e-5) << one.name;
    const int64_t offset = one.scheme.is_signed ? 1 << (one.scheme.bits - 1) : 0;
    const at::Tensor zeros = golden(one.name + ".zero_point").view_as(ours.parameters.zero_point) - offset;
    EXPECT_LE(ours.parameters.zero_point.ne(zeros).sum().item<int64_t>(), 2) << one.name;
  }
}

TEST(Gptq, IsPlainRoundingForUncorrelatedInputs) {
  const Layer layer = correlated_layer(6, 16, 32);
  InputStatistics inputs(32);
  inputs.add(at::eye(32) * 3);
  for (const bool activation_order : {false, true}) {
    const QuantizedTensor ours =
        gptq(layer.weight, inputs, grouped(4, false, 8), {.activation_order = activation_order});
    EXPECT_TRUE(ours.values.equal(quantize(layer.weight, ours.scheme).values));
  }
}

// Blocks only delay updates. With a scale per row, their size changes nothing but rounding errors.
TEST(Gptq, DoesNotDependOnTheBlockSize) {
  const Layer layer = correlated_layer(7);
  const QuantizedTensor whole = gptq(layer.weight, layer.inputs, per_channel(4, true));
  for (const int64_t block_size : {1, 7, 1000}) {
    const QuantizedTensor blocks = gptq(layer.weight, layer.inputs, per_channel(4, true), {.block_size = block_size});
    EXPECT_LE(whole.values.ne(blocks.values).any(1).sum().item<int64_t>(), 5) << block_size << ", of 96 rows";
  }
}

TEST(Gptq, InputsThatAreAlwaysZeroGetZeroWeights) {
  const Layer layer = correlated_layer(8);
  at::Tensor x = layer.x.clone();
  x.slice(1, 5, 9).zero_();
  const QuantizedTensor ours = gptq(layer.weight, statistics_of(x), grouped(4, false, 32));
  EXPECT_TRUE(ours.dequantize().slice(1, 5, 9).equal(at::zeros({96, 4})));
}

TEST(Gptq, RejectsBadOptions) {
  const Layer layer = correlated_layer(9, 4, 8, 4);
  const auto error_with = [&](const GptqOptions& options) {
    return message_of([&] { gptq(layer.weight, layer.inputs, weight_scheme(4), options); });
  };
  EXPECT_THAT(error_with({.block_size = 0}), HasSubstr("`block_size` of at least 1, got 0"));
  EXPECT_THAT(error_with({.damping = -1}), HasSubstr("`damping` in [0, 1], got -1"));
  // Four inputs do not determine the errors of eight features.
  EXPECT_THAT(error_with({.damping = 0}), HasSubstr("not positive definite with the `damping` 0. Use a larger"));
}

TEST(Awq, IntegersAreThoseOfTheOriginal) {
  const Golden golden("quant/methods.safetensors");
  const at::Tensor weight = golden("weight");
  const InputStatistics inputs = statistics_of(golden("x").to(at::kFloat));
  for (const auto& [name, scheme] :
       {std::pair<std::string, Scheme>{"awq.uint4", grouped(4, false, 64)}, {"awq.uint3", grouped(3, false, 32)}}) {
    const AwqWeight ours = awq(weight, inputs, scheme);
    EXPECT_TRUE(at::allclose(ours.scales, golden(name + ".scales"), 1e-5, 0)) << name;
    // A scale whose last bit differs can change the integers at the ends of a clipped range.
    EXPECT_LE(rows_that_differ(ours.weight, golden(name + ".integers")), 4) << name << ", of 40 rows";

    const at::Tensor scales = golden(name + ".scales");
    const at::Tensor clipped = awq_clip(weight * scales, inputs.divided_by(scales), scheme);
    EXPECT_TRUE(clipped.equal(golden(name + ".clipped"))) << name;
  }
}

TEST(Methods, HaveSmallerErrorsThanPlainRounding) {
  for (const Scheme& scheme :
       {grouped(4, true, 32), grouped(4, false, 64), per_channel(4, true), per_channel(4, false)}) {
    const Layer layer = correlated_layer(3);
    const double plain = error_of(layer, quantize(layer.weight, scheme));
    const auto share = [&](const auto& quantized) { return error_of(layer, quantized) / plain; };
    const std::string context = scheme.to_text();
    const double by_gptq = share(gptq(layer.weight, layer.inputs, scheme));
    EXPECT_LT(by_gptq, 0.3) << context;
    EXPECT_LT(share(gptq(layer.weight, layer.inputs, scheme, {.activation_order = true})), by_gptq) << context;
    EXPECT_LT(share(awq(layer.weight, layer.inputs, scheme)), 0.8) << context;
    EXPECT_LT(share(awq(layer.weight, layer.inputs, scheme, {.max_shrink = 0})), 0.95) << context;
    EXPECT_LT(share(hqq(layer.weight, scheme)), 0.97) << context;
    EXPECT_LT(share(auto_round(layer.weight, layer.inputs, scheme)), 0.6) << context;
  }
}

TEST(Methods, KeepConstantAndZeroChannels) {
  const Layer layer = correlated_layer(10, 8, 16);
  at::Tensor weight = layer.weight.clone();
  weight[0].zero_();
  weight[1].fill_(0.25);
  weight[2].fill_(-3);
  weight.select(1, 3).zero_();
  for (const auto& [name, method] : methods()) {
    for (const Scheme& scheme : {grouped(4, true, 8), grouped(4, false, 8), per_channel(8, false)}) {
      const QuantizedTensor ours = method(weight, layer.inputs, scheme);
      const at::Tensor back = ours.dequantize();
      EXPECT_TRUE(at::isfinite(back).all().item<bool>()) << name;
      EXPECT_TRUE(back[0].equal(at::zeros({16}))) << name;
      EXPECT_EQ(ours.parameters.scale.sizes(), quantize(weight, scheme).parameters.scale.sizes()) << name;
      EXPECT_GT(ours.parameters.scale.min().item<float>(), 0) << name;
    }
  }
}

TEST(Methods, AreDeterministic) {
  const Layer layer = correlated_layer(11, 24, 64);
  for (const auto& [name, method] : methods()) {
    const Scheme scheme = grouped(3, false, 16);
    const QuantizedTensor first = method(layer.weight, layer.inputs, scheme);
    const QuantizedTensor second = method(layer.weight, layer.inputs, scheme);
    EXPECT_TRUE(first.values.equal(second.values) && first.parameters.scale.equal(second.parameters.scale)) << name;
  }
}

TEST(Methods, AcceptParametersAndOtherDtypes) {
  const Layer layer = correlated_layer(12, 8, 16);
  const at::Tensor weight = layer.weight.to(at::kBFloat16).requires_grad_();
  for (const auto& [name, method] : methods()) {
    const QuantizedTensor ours = method(weight, layer.inputs, weight_scheme(4));
    EXPECT_TRUE(ours.values.equal(method(weight.detach().to(at::kFloat), layer.inputs, weight_scheme(4)).values));
    EXPECT_FALSE(ours.parameters.scale.requires_grad()) << name;
  }
}

TEST(Methods, RejectBadInput) {
  const Layer layer = correlated_layer(13, 4, 8, 16);
  at::Tensor broken = layer.weight.clone();
  broken[1][1] = std::numeric_limits<float>::quiet_NaN();
  const Scheme columns{.bits = 4, .granularity = Granularity::channel, .axis = 1};
  for (const auto& [name, method] : methods()) {
    const auto error_with = [&](const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme) {
      return message_of([&, &method = method] { method(weight, inputs, scheme); });
    };
    EXPECT_THAT(error_with(broken, layer.inputs, weight_scheme(4)), HasSubstr(name + ": the weight of shape [4, 8]"));
    EXPECT_THAT(error_with(at::ones({2, 2, 2}), layer.inputs, {}), HasSubstr("shape [out, in], got Float [2, 2, 2]"));
    EXPECT_THAT(error_with(layer.weight, layer.inputs, group_scheme(4, 3)), HasSubstr("multiple of the group size 3"));
    EXPECT_THAT(error_with(layer.weight, layer.inputs, columns), HasSubstr("one scale per output channel (axis 0)"));
    if (name == "hqq") continue;
    EXPECT_THAT(error_with(layer.weight, InputStatistics(8), weight_scheme(4)), HasSubstr("expected calibration data"));
    EXPECT_THAT(error_with(layer.weight, InputStatistics(9), weight_scheme(4)), HasSubstr("statistics of 8 features"));
  }
  EXPECT_THAT(message_of([&] { awq_scales(layer.weight, layer.inputs, {}, {.grid = 0}); }), HasSubstr("`grid`"));
  EXPECT_THAT(message_of([&] { awq(layer.weight, layer.inputs, {}); }), HasSubstr("Set `max_shrink` to 0"));
  EXPECT_THAT(message_of([&] { awq(layer.weight, layer.inputs, {}, {.max_shrink = 1}); }), HasSubstr("[0, 1), got 1"));
  EXPECT_THAT(message_of([&] { hqq(layer.weight, {}, {.norm = 2}); }), HasSubstr("`norm` in (0, 1], got 2"));
  EXPECT_THAT(message_of([&] { hqq(layer.weight, {}, {.beta = 0}); }), HasSubstr("positive `beta`"));
  EXPECT_THAT(message_of([&] { hqq(layer.weight, {}, {.iterations = 0}); }), HasSubstr("`iterations`, got 0"));
  EXPECT_THAT(message_of([&] { auto_round(layer.weight, layer.inputs, {}, {.steps = -1}); }), HasSubstr("`steps`"));
  EXPECT_THAT(message_of([&] { auto_round(layer.weight, layer.inputs, {}, {.learning_rate = 2}); }),
              HasSubstr("`learning_rate` in [0, 1], got 2"));
}

TEST(AutoRound, WithoutStepsIsPlainRounding) {
  const Layer layer = correlated_layer(14, 8, 32);
  for (const Scheme& scheme : {grouped(4, true, 8), per_channel(3, false), Scheme{.bits = 5}}) {
    const QuantizedTensor ours = auto_round(layer.weight, layer.inputs, scheme, {.steps = 0});
    EXPECT_TRUE(ours.values.equal(quantize(layer.weight, scheme).values)) << scheme.to_text();
  }
}

TEST(AutoRound, WithoutRangesChangesEachIntegerByAtMostOne) {
  const Layer layer = correlated_layer(15, 16, 32);
  const QuantizedTensor plain = quantize(layer.weight, weight_scheme(4));
  const QuantizedTensor ours = auto_round(layer.weight, layer.inputs, weight_scheme(4), {.tune_range = false});
  EXPECT_TRUE(ours.parameters.scale.equal(plain.parameters.scale));
  EXPECT_EQ((ours.values - plain.values).abs().max().item<int>(), 1);
}

TEST(SmoothQuant, BalancesInputsAndWeights) {
  at::manual_seed(16);
  const at::Tensor weight = torch::tensor({{2.F, -8.F, 0.F, 1.F}, {1.F, 4.F, 0.F, -1.F}});
  const at::Tensor x = torch::tensor({{8.F, 1.F, 3.F, 0.F}, {-2.F, -2.F, 1.F, 0.F}});
  const InputStatistics inputs = statistics_of(x);
  EXPECT_TRUE(at::allclose(smooth_quant_scales(weight, inputs), torch::tensor({2.F, 0.5F, 1.F, 1.F})));
  EXPECT_TRUE(at::allclose(smooth_quant_scales(weight, inputs, 1), torch::tensor({8.F, 2.F, 1.F, 1.F})));
  EXPECT_THAT(message_of([&] { smooth_quant_scales(weight, inputs, 1.5); }), HasSubstr("`alpha` in [0, 1], got 1.5"));
  EXPECT_THAT(message_of([&] { smooth_quant_scales(weight, InputStatistics(4)); }), HasSubstr("calibration data"));
}

TEST(SmoothQuant, ReducesTheErrorOfEightBitLayersWithOutliers) {
  Layer layer = correlated_layer(17);
  layer.x.select(1, 5) *= 60;
  const at::Tensor scales = smooth_quant_scales(layer.weight, statistics_of(layer.x));
  const auto output = [&](const at::Tensor& x, const at::Tensor& weight) {
    return quantize(x, Scheme{}).dequantize().matmul(quantize(weight, weight_scheme()).dequantize().t());
  };
  const at::Tensor exact = layer.x.matmul(layer.weight.t());
  EXPECT_GT(sqnr(exact, output(layer.x / scales, layer.weight * scales)),
            sqnr(exact, output(layer.x, layer.weight)) + 6);
}

TEST(BiasCorrection, KeepsTheMeanOfEachOutput) {
  const Layer layer = correlated_layer(18);
  const at::Tensor quantized = quantize(layer.weight, weight_scheme(3)).dequantize();
  const at::Tensor shift = bias_correction(layer.weight, quantized, layer.inputs);
  const at::Tensor exact = layer.x.matmul(layer.weight.t()).mean(0), mean = layer.x.matmul(quantized.t()).mean(0);
  EXPECT_GT((mean - exact).abs().max().item<float>(), 0.05);
  EXPECT_TRUE(at::allclose(mean + shift, exact, 1e-4, 1e-4));
  EXPECT_THAT(message_of([&] { bias_correction(layer.weight, quantized.slice(0, 1), layer.inputs); }),
              HasSubstr("two weights of one shape, got [96, 128] and [95, 128]"));
}

TEST(Equalization, KeepsTheFunctionAndEqualizesRanges) {
  at::manual_seed(19);
  at::Tensor first = torch::randn({6, 5}) * (torch::rand({6, 1}) * 6).exp();
  first[4].zero_();
  const at::Tensor bias = torch::randn({6}), second = torch::randn({3, 6 * 4}), x = torch::randn({7, 5});
  const at::Tensor scales = equalization_scales(first, second);
  EXPECT_EQ(scales[4].item<float>(), 1);
  const at::Tensor by_column = scales.repeat_interleave(4);
  const auto output = [&](const at::Tensor& w1, const at::Tensor& b1, const at::Tensor& w2) {
    return (x.matmul(w1.t()) + b1).relu().repeat_interleave(4, 1).matmul(w2.t());
  };
  EXPECT_TRUE(at::allclose(output(first / scales.unsqueeze(1), bias / scales, second * by_column),
                           output(first, bias, second), 1e-4, 1e-4));
  const at::Tensor produced = (first / scales.unsqueeze(1)).abs().amax(1);
  const at::Tensor consumed = (second * by_column).view({3, 6, 4}).abs().amax(at::IntArrayRef({0, 2}));
  for (const int64_t channel : {0, 1, 2, 3, 5})
    EXPECT_NEAR(produced[channel].item<float>() / consumed[channel].item<float>(), 1, 1e-5);
  EXPECT_THAT(message_of([&] { equalization_scales(first, second.slice(1, 1)); }), HasSubstr("shape [out, 6 · k]"));
}

}  // namespace bellows::quant
