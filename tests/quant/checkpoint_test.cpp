// Whole models in the formats of GPTQ, AWQ and compressed-tensors.
#include "bellows/quant/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/quant/networks.h"
#include "tests/quant/support.h"
#include "tests/support/errors.h"

namespace bellows::quant {
namespace {

using samples::batches_of;
using samples::model_of;
using samples::relative;
using ::testing::HasSubstr;

torch::nn::Sequential network(uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(64, 96), torch::nn::LayerNorm(torch::nn::LayerNormOptions({96})),
                               torch::nn::GELU(), torch::nn::Linear(96, 32));
}

Quantized quantized(const Options& options) {
  return quantize(model_of(network(1)), options, batches_of({8, 64}));
}

TEST(QuantizedCheckpoint, LoadsWhatItWrites) {
  const Scheme affine{.bits = 4, .granularity = Granularity::group, .group_size = 32};
  const std::vector<QuantizationConfig> configs{
      {.format = WeightFormat::gptq, .weights = group_scheme(4, 32)},
      {.format = WeightFormat::gptq_v2, .weights = affine},
      {.format = WeightFormat::gptq, .weights = weight_scheme(8)},
      {.format = WeightFormat::awq, .weights = affine},
      {.format = WeightFormat::pack_quantized, .weights = group_scheme(4, 32)},
      {.format = WeightFormat::int_quantized, .weights = weight_scheme(8)}};
  const at::Tensor x = torch::randn({5, 64});
  for (const QuantizationConfig& config : configs) {
    const Quantized made = quantized({.method = Method::weight_only, .weights = config.weights});
    const Quantized loaded = load_checkpoint(to_checkpoint(made, config), config, model_of(network(2)));
    EXPECT_EQ(loaded.layers->size(), 2u);
    EXPECT_LT(relative(loaded.model.forward(x), made.model.forward(x)), 2e-3) << name_of(config.format);
  }
}

TEST(QuantizedCheckpoint, Int8Activations) {
  QuantizationConfig config{.format = WeightFormat::int_quantized, .weights = weight_scheme(8)};
  config.inputs = ActivationConfig{.scheme = {.is_signed = true, .symmetric = true, .granularity = Granularity::token}};
  const Quantized made = quantized({.method = Method::dynamic});
  const Quantized loaded = load_checkpoint(to_checkpoint(made, config), config, model_of(network(2)));
  const at::Tensor x = torch::randn({5, 64});
  EXPECT_TRUE(loaded.model.forward(x).equal(made.model.forward(x)));
  NamedTensors tensors = to_checkpoint(made, config);
  config.inputs->dynamic = false;
  config.inputs->scheme.granularity = Granularity::tensor;
  for (const char* name : {"0.input_scale", "3.input_scale"}) tensors.emplace_back(name, torch::full({1}, 0.03));
  const Quantized fixed = load_checkpoint(tensors, config, model_of(network(2)));
  EXPECT_EQ(fixed.layers->front().method, Method::static_range);
  EXPECT_GT(sqnr(samples::plain(model_of(network(1)), x), fixed.model.forward(x)), 25);
  const Quantized again = load_checkpoint(to_checkpoint(fixed, config), config, model_of(network(2)));
  EXPECT_TRUE(again.model.forward(x).equal(fixed.model.forward(x)));
  EXPECT_THAT(message_of([&] { to_checkpoint(made, config); }), HasSubstr("its method is dynamic"));
  EXPECT_THAT(message_of([&] { to_checkpoint(quantized({}), config); }), HasSubstr("its input has a zero point"));
  std::erase_if(tensors, [](const auto& one) { return one.first == "0.input_scale"; });
  EXPECT_THAT(message_of([&] { load_checkpoint(tensors, config, model_of(network(2))); }),
              HasSubstr("the layer \"0\" needs the tensor input_scale"));
}

TEST(QuantizedCheckpoint, InputsInAnotherOrder) {
  const QuantizationConfig config{
      .format = WeightFormat::gptq, .weights = group_scheme(4, 32), .activation_order = true};
  const Quantized made = quantized({.method = Method::weight_only, .weights = config.weights});
  std::vector<QuantizedLayer> layers;
  for (QuantizedLayer layer : *made.layers) {
    layer.weight.values = layer.integers();
    layer.packed = {};
    layer.input_order = torch::randperm(layer.weight.values.size(1));
    layers.push_back(layer);
  }
  const Quantized ordered = with_layers(model_of(network(1)), layers);
  const at::Tensor x = torch::randn({5, 64});
  const at::Tensor first = at::linear(x.index_select(1, layers[0].input_order), layers[0].weight.dequantize());
  EXPECT_LT(relative(layers[0].run(x, {}, {}), first), 1e-5);
  const Quantized loaded = load_checkpoint(to_checkpoint(ordered, config), config, model_of(network(2)));
  EXPECT_LT(relative(loaded.model.forward(x), ordered.model.forward(x)), 2e-3);
  EXPECT_GT(relative(made.model.forward(x), ordered.model.forward(x)), 0.1) << "the order has no effect";
}

TEST(QuantizedCheckpoint, Errors) {
  const QuantizationConfig config{.format = WeightFormat::gptq, .weights = group_scheme(4, 32)};
  const Quantized made = quantized({.method = Method::weight_only, .weights = config.weights});
  const NamedTensors tensors = to_checkpoint(made, config);
  const auto loading = [&](const NamedTensors& changed, const QuantizationConfig& how) {
    return message_of([&] { load_checkpoint(changed, how, model_of(network(2))); });
  };
  QuantizationConfig other = config;
  other.format = WeightFormat::pack_quantized;
  EXPECT_THAT(loading(tensors, other), HasSubstr("no linear of the model has a tensor \"weight_packed\""));
  NamedTensors less = tensors;
  std::erase_if(less, [](const auto& one) { return one.first == "1.bias"; });
  EXPECT_THAT(loading(less, config), HasSubstr("1.bias"));
  less = tensors;
  std::erase_if(less, [](const auto& one) { return one.first == "3.scales"; });
  EXPECT_THAT(loading(less, config), HasSubstr("scales"));
  NamedTensors more = tensors;
  more.emplace_back("extra", torch::ones({2}));
  EXPECT_THAT(loading(more, config), HasSubstr("extra"));
  const Quantized corrected =
      quantized({.method = Method::weight_only, .weights = config.weights, .correct_bias = true});
  EXPECT_THAT(message_of([&] { to_checkpoint(corrected, config); }), HasSubstr("cannot store the layer \"0\""));
}

}  // namespace
}  // namespace bellows::quant
