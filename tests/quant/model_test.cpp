// Quantization of whole models: what each layer computes, which layers stay in floating point, and errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/quant/quantize.h"
#include "tests/quant/networks.h"
#include "tests/quant/support.h"
#include "tests/support/errors.h"

namespace bellows::quant {
namespace {

using samples::Attending;
using samples::batches_of;
using samples::layer;
using samples::model_of;
using samples::relative;
using samples::Small;
using ::testing::HasSubstr;

std::string kept(const Quantized& quantized, const std::string& name) {
  for (const LayerReport& one : quantized.report.layers) {
    if (one.name == name) return one.kept;
  }
  return "no layer";
}

TEST(QuantizedModel, StaticLinearComputesWithIntegers) {
  const torch::nn::Linear net(40, 12);
  const Model model = model_of(net);
  const auto batches = batches_of({6, 40});
  const Quantized made = quantize(model, {}, batches);
  const QuantizedLayer& one = layer(made, "weight");
  EXPECT_FALSE(one.input_is_signed);
  const at::Tensor x = torch::randn({5, 40}) * 3;  // some values saturate
  const Scheme activations;
  const at::Tensor seen = quantize(x, one.input, activations).dequantize();
  const at::Tensor expected =
      at::linear(seen.to(at::kDouble), one.weight.dequantize().to(at::kDouble), net->bias.detach().to(at::kDouble));
  EXPECT_LT(relative(made.model.forward(x), expected), 1e-6) << "only the last rounding differs";
  EXPECT_LT(seen.max().item<float>(), x.max().item<float>());
}

TEST(QuantizedModel, SumsReadQuantizedShortcuts) {
  const auto batches = batches_of({4, 3, 12, 12});
  const at::Tensor x = torch::randn({2, 3, 12, 12});
  for (const bool quantizes : {true, false}) {
    Small net;
    net->eval();
    const Quantized made = quantize(model_of(net), {.quantize_sums = quantizes}, batches);
    const QuantizedLayer &second = layer(made, "second"), &last = layer(made, "last");
    const torch::NoGradGuard no_gradients;
    const ConvolutionArguments valid{{1, 1}, {0, 0}, {1, 1}}, padded{{1, 1}, {1, 1}, {1, 1}};
    const at::Tensor before = torch::max_pool2d(torch::relu(layer(made, "first").run(x, {}, valid)), 2);
    const at::Tensor y = second.run(before, net->second->bias, padded);
    const at::Tensor shortcut = quantizes ? dequantize_activations(second.quantized_input(before)) : before;
    const at::Tensor sum = torch::relu(net->other(y) + y + shortcut).flatten(1);
    EXPECT_LT(relative(made.model.forward(x), last.run(sum, net->last->bias, {})), 1e-6) << quantizes;
    EXPECT_GT(relative(shortcut, before), quantizes ? 1e-4 : -1);
  }
}

TEST(QuantizedModel, AttentionMultipliesIntegers) {
  const Attending net;
  const Model model = model_of(net);
  const auto batches = batches_of({2, 9, 24});
  const Quantized made = quantize(model, {.quantize_attention = true}, batches);
  ASSERT_EQ(made.report.attentions.size(), 1);
  EXPECT_EQ(made.report.attentions[0].value, "self_value");
  EXPECT_EQ(made.report.attentions[0].kept, "");
  EXPECT_GT(made.report.attentions[0].result_sqnr, 30);
  EXPECT_LT(made.report.attentions[0].result_sqnr, 80);
  EXPECT_THAT(made.report.to_text(), HasSubstr("1 of 1 attentions quantized"));
  const at::Tensor x = batches[0][0];
  AttentionOperands operands;
  at::Tensor* const tensors[] = {&operands.query, &operands.key, &operands.value};
  at::Tensor* const scales[] = {&operands.query_scale, &operands.key_scale, &operands.value_scale};
  torch::nn::Linear linears[] = {net->query, net->key, net->value};
  const char* const names[] = {"self_query", "self_key", "self_value"};
  const torch::NoGradGuard no_gradients;
  for (int i = 0; i < 3; ++i) {
    *scales[i] = layer(made, names[i]).result_scale;
    *tensors[i] = layer(made, names[i]).run(x, linears[i]->bias, {}).view({2, 9, 3, 8}).transpose(1, 2);
    double largest = 0;
    for (const auto& batch : batches)
      largest = std::max(largest, linears[i]->forward(batch[0]).abs().max().item<double>());
    EXPECT_NEAR(scales[i]->item<double>(), largest / 127.5, largest * 1e-4);
  }
  const at::Tensor y = quantized_attention(operands, {}).transpose(1, 2).reshape(x.sizes());
  EXPECT_LT(relative(made.model.forward(x), layer(made, "last").run(y, net->last->bias, {})), 1e-6);
  EXPECT_GT(sqnr(samples::plain(model, x), made.model.forward(x)), 25);
}

TEST(QuantizedModel, AttentionThatStaysInFloatingPoint) {
  Attending net;
  const auto batches = batches_of({2, 9, 24});
  EXPECT_FALSE(
      layer(quantize(model_of(net), {.quantize_attention = false}, batches), "self_key").result_scale.defined());
  const Quantized part = quantize(model_of(net), {.quantize_attention = true, .skip = {"self_key"}}, batches);
  ASSERT_EQ(part.report.attentions.size(), 1);
  EXPECT_EQ(part.report.attentions[0].kept, "the linear \"self_key\" is not quantized");
  EXPECT_FALSE(layer(part, "self_query").result_scale.defined());
  const Quantized made = quantize(model_of(net), {.quantize_attention = true}, batches);
  const at::Tensor all = made.model.forward(batches[0][0]);
  net->mask = torch::zeros({1, 1, 9, 9});  // changes nothing, but the fused operator then has a mask
  EXPECT_GT(sqnr(all, made.model.forward(batches[0][0])), 25);
  EXPECT_TRUE(quantize(model_of(net), {.quantize_attention = true}, batches).report.attentions.empty());
}

TEST(QuantizedModel, DynamicLinearHasAScalePerRow) {
  const torch::nn::Linear net(33, 7);
  const Quantized made = quantize(model_of(net), {.method = Method::dynamic}, batches_of({2, 33}));
  at::Tensor x = torch::randn({2, 3, 33});
  x[1] *= 1000;
  x[0][1].zero_();
  const at::Tensor scale = x.abs().amax(-1, true) / 127;
  const at::Tensor seen = at::where(scale > 0, at::round(x / scale).nan_to_num(0) * scale, 0);
  const at::Tensor expected = at::linear(seen, layer(made, "weight").weight.dequantize(), net->bias.detach());
  EXPECT_LT(relative(made.model.forward(x)[0], expected[0]), 1e-5) << "small rows keep their precision";
  EXPECT_LT(relative(made.model.forward(x), expected), 1e-5);
}

TEST(QuantizedModel, WeightOnlyLinears) {
  for (const Scheme& scheme : {weight_scheme(8), weight_scheme(4), weight_scheme(3), group_scheme(4, 32),
                               Scheme{.bits = 4, .granularity = Granularity::group, .group_size = 32},
                               Scheme{.granularity = Granularity::channel}}) {
    const torch::nn::Linear net(torch::nn::LinearOptions(96, 21));
    const Quantized made =
        quantize(model_of(net), {.method = Method::weight_only, .weights = scheme}, batches_of({3, 96}));
    const at::Tensor expected_integers = quantize(net->weight.detach(), scheme).values;
    EXPECT_TRUE(layer(made, "weight").integers().equal(expected_integers)) << scheme.to_text();
    const at::Tensor x = torch::randn({2, 9, 96});
    const at::Tensor expected = at::linear(x, quantize(net->weight.detach(), scheme).dequantize(), net->bias.detach());
    EXPECT_LT(relative(made.model.forward(x), expected), 1e-5) << scheme.to_text();
  }
}

TEST(QuantizedModel, ConvolutionsPadWithZero) {
  for (const bool negative : {false, true}) {
    const torch::nn::Conv2d net(torch::nn::Conv2dOptions(6, 8, 3).padding(1).stride(2).groups(2));
    std::vector<std::vector<at::Tensor>> batches{{torch::rand({2, 6, 9, 9}) - (negative ? 0.7 : 0.0)}};
    const Quantized made = quantize(model_of(net), {}, batches);
    const QuantizedLayer& one = layer(made, "weight");
    EXPECT_EQ(one.input_is_signed, negative);
    EXPECT_EQ(one.input.zero_point.item<int>(), 0);
    const at::Tensor x = batches[0][0];
    const at::Tensor seen = quantize(x, one.input, Scheme{.is_signed = negative, .symmetric = negative}).dequantize();
    const at::Tensor expected =
        at::conv2d(seen, one.weight.dequantize(), net->bias.detach(), {2, 2}, {1, 1}, {1, 1}, 2);
    EXPECT_LT(relative(made.model.forward(x), expected), 1e-5);
  }
}

TEST(QuantizedModel, FoldsNormsIntoConvolutions) {
  const Small net;
  const Model model = model_of(net);
  const auto batches = batches_of({4, 3, 12, 12});
  const Quantized made = quantize(model, {.method = Method::weight_only}, batches);
  EXPECT_EQ(layer(made, "first").norm, "norm");
  EXPECT_EQ(layer(made, "second").norm, "") << "another operator reads its result, too";
  const Quantized apart = quantize(model, {.method = Method::weight_only, .fold_norms = false}, batches);
  EXPECT_EQ(layer(apart, "first").norm, "");
  EXPECT_EQ(layer(quantize(model, {}, batches), "first").norm, "norm") << "several batches";
  const at::Tensor x = torch::randn({2, 3, 12, 12}), expected = samples::plain(model, x);
  EXPECT_GT(sqnr(expected, made.model.forward(x)), 35);
  EXPECT_GT(sqnr(expected, apart.model.forward(x)), 35);
}

TEST(QuantizedModel, WholeModelIsClose) {
  const Model model = model_of(Small());
  const auto batches = batches_of({8, 3, 12, 12}, 4);
  const at::Tensor x = torch::randn({2, 3, 12, 12}), expected = samples::plain(model, x);
  for (const Method method : {Method::static_range, Method::dynamic, Method::weight_only}) {
    const Quantized made = quantize(model, {.method = method}, batches);
    EXPECT_GT(sqnr(expected, made.model.forward(x)), 28) << name_of(method);
    c10::InferenceMode inference;
    EXPECT_TRUE(made.model.forward(x).equal(made.model.forward(x)));
    for (const LayerReport& one : made.report.layers) {
      if (one.kept.empty()) {
        EXPECT_GT(one.result_sqnr, 28) << one.name;
      }
    }
  }
  EXPECT_TRUE(samples::plain(model, x).equal(expected)) << "the original model has changed";
}

TEST(QuantizedModel, KeepsLayersThatItCannotQuantize) {
  const Model model = model_of(samples::Tied());
  const auto batches = std::vector<std::vector<at::Tensor>>{{torch::randint(0, 20, {3, 5})}};
  const Options no_embeddings{.method = Method::weight_only, .quantize_embeddings = false};
  const Quantized made = quantize(model, no_embeddings, batches);
  EXPECT_THAT(kept(made, "words"), HasSubstr("also read by aten::embedding"));
  EXPECT_EQ(kept(made, "inner"), "");
  EXPECT_THAT(made.report.to_text(), HasSubstr("float: the weight is also read by aten::embedding (1 layer)"));
  Options strict = no_embeddings;
  strict.strict = true;
  EXPECT_THAT(message_of([&] { quantize(model, strict, batches); }),
              HasSubstr("the layer \"words\" cannot be quantized: the weight is also read by aten::embedding"));
  const Quantized groups = quantize(
      model, {.method = Method::weight_only, .weights = group_scheme(4, 5), .skip = {"in*"}, .min_weights = 100},
      batches);
  EXPECT_EQ(kept(groups, "inner"), "skipped");
  EXPECT_EQ(kept(groups, "small"), "fewer than 100 weights");
  EXPECT_EQ(kept(groups, "odd"), "groups of 5 do not divide its 16 inputs");
}

TEST(QuantizedModel, ChannelsOfZerosAndConstants) {
  const torch::nn::Linear net(16, 4);
  {
    const torch::NoGradGuard no_gradients;
    net->weight[1].zero_();
    net->weight[2].fill_(0.25);
  }
  const std::vector<std::vector<at::Tensor>> zeros{{torch::zeros({2, 16})}};
  for (const Method method : {Method::static_range, Method::dynamic, Method::weight_only}) {
    const Quantized made = quantize(model_of(net), {.method = method}, zeros);
    const at::Tensor y = made.model.forward(torch::zeros({3, 16}));
    EXPECT_TRUE(y.equal(net->bias.detach().expand({3, 4}))) << name_of(method);
    EXPECT_TRUE(made.model.forward(torch::ones({3, 16})).isfinite().all().item<bool>());
  }
}

TEST(QuantizedModel, ReleasesWeights) {
  const Small net;
  const Model model = model_of(net);
  const auto batches = batches_of({4, 3, 12, 12});
  const at::Tensor x = torch::randn({2, 3, 12, 12});
  const at::Tensor before = quantize(model, {}, batches).model.forward(x);
  const Quantized made = quantize(model, {.release_weights = true}, batches);
  EXPECT_TRUE(made.model.forward(x).equal(before));
  EXPECT_LE(net->last->weight.storage().nbytes(), 4u * 400);
  EXPECT_TRUE(samples::plain(model, x).isnan().all().item<bool>()) << "a wrong result must be visible";
}

TEST(QuantizedModel, MethodsReduceErrors) {
  const torch::nn::Sequential net(torch::nn::Linear(64, 64), torch::nn::ReLU(), torch::nn::Linear(64, 32));
  const Model model = model_of(net);
  torch::manual_seed(3);
  const at::Tensor mix = torch::randn({64, 64});
  std::vector<std::vector<at::Tensor>> batches;
  for (int i = 0; i < 4; ++i) batches.push_back({torch::randn({64, 64}).matmul(mix)});
  const at::Tensor x = torch::randn({64, 64}).matmul(mix), expected = samples::plain(model, x);
  const auto quality = [&](Rounding rounding) {
    const Options options{.method = Method::weight_only, .weights = group_scheme(4, 32), .rounding = rounding};
    return sqnr(expected, quantize(model, options, batches).model.forward(x));
  };
  const double nearest = quality(Rounding::nearest);
  for (const Rounding rounding : {Rounding::hqq, Rounding::gptq, Rounding::awq, Rounding::auto_round})
    EXPECT_GT(quality(rounding), nearest + 0.1) << name_of(rounding);
}

TEST(QuantizedModel, SmoothingMovesOutliersToWeights) {
  const torch::nn::Linear net(64, 32);
  const Model model = model_of(net);
  std::vector<std::vector<at::Tensor>> batches;
  for (int i = 0; i < 4; ++i) {
    at::Tensor x = torch::randn({32, 64});
    x.select(1, 5).mul_(60);
    batches.push_back({x});
  }
  const at::Tensor expected = samples::plain(model, batches[0][0]);
  for (const Method method : {Method::static_range, Method::dynamic}) {
    const auto quality = [&](double smooth) {
      return sqnr(expected,
                  quantize(model, {.method = method, .smooth = smooth}, batches).model.forward(batches[0][0]));
    };
    EXPECT_GT(quality(0.5), quality(0) + 3) << name_of(method);
  }
}

TEST(QuantizedModel, CorrectsTheBias) {
  const torch::nn::Linear net(64, 32);
  const std::vector<std::vector<at::Tensor>> batches{{torch::rand({256, 64}) + 1}};
  const at::Tensor expected = samples::plain(model_of(net), batches[0][0]).mean(0);
  const auto shift = [&](bool correct) {
    const Options options{.method = Method::weight_only, .weights = weight_scheme(3), .correct_bias = correct};
    return (quantize(model_of(net), options, batches).model.forward(batches[0][0]).mean(0) - expected)
        .abs()
        .max()
        .item<double>();
  };
  EXPECT_LT(shift(true), 1e-4);
  EXPECT_GT(shift(false), 1e-2);
}

TEST(QuantizedModel, Errors) {
  const Model model = model_of(Small());
  const auto batches = batches_of({4, 3, 12, 12});
  EXPECT_THAT(message_of([&] { quantize(model, {}, {}); }), HasSubstr("expected at least one batch, got none"));
  auto damaged = batches;
  damaged.push_back({torch::full({4, 3, 12, 12}, NAN)});
  EXPECT_THAT(message_of([&] { quantize(model, {}, damaged); }),
              HasSubstr("the input of the layer \"first\" contains NaN or infinite values"));
  EXPECT_THAT(message_of([&] { quantize(model, {.weights = group_scheme(4, 32)}, batches); }),
              HasSubstr("the method static needs weights in symmetric int8"));
  EXPECT_THAT(message_of([&] { quantize(model, {.rounding = Rounding::awq}, batches); }),
              HasSubstr("rounding awq needs the method weight_only"));
  EXPECT_THAT(message_of([&] { quantize(model, {.skip = {"*"}}, batches); }),
              HasSubstr("no layer of the model can be quantized"));
  EXPECT_THAT(message_of([] { rounding_of("best"); }), HasSubstr("there is no rounding \"best\""));
  EXPECT_THAT(message_of([] { method_of("int8"); }), HasSubstr("Expected static, dynamic or weight_only"));
  const Quantized made = quantize(model, {}, batches);
  EXPECT_THAT(message_of([&] { made.model.train(); }), HasSubstr("cannot be trained"));
  EXPECT_THAT(message_of([&] { made.model.to(at::kBFloat16); }), HasSubstr("cannot be cast"));
  EXPECT_THAT(message_of([&] { with_layers(model_of(torch::nn::Linear(4, 4)), *made.layers); }),
              HasSubstr("the model has no parameter \"first.weight\""));
}

}  // namespace
}  // namespace bellows::quant
