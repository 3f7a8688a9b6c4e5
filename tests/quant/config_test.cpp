// The field quantization_config of config.json.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "bellows/quant/formats/config.h"
#include "tests/support/errors.h"

namespace bellows::quant {

namespace {

using testing::HasSubstr;

Scheme affine_weights(int bits, int64_t group_size) {
  return {.bits = bits, .granularity = Granularity::group, .group_size = group_size};
}

std::string error_with(const std::string& json) {
  return message_of([&] { parse_quantization_config(json, "config.json"); });
}

std::string compressed(const std::string& weights, const std::string& rest = "") {
  return R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"targets":
    ["Linear"], "weights": )" +
         weights + rest + "}}}";
}

}  // namespace

TEST(QuantizationConfig, KeepsItsFields) {
  Scheme per_token{.is_signed = true, .symmetric = true, .granularity = Granularity::token};
  const std::vector<QuantizationConfig> configs{
      {},
      {.format = WeightFormat::gptq, .weights = group_scheme(3, 64), .activation_order = true},
      {.format = WeightFormat::gptq_v2, .weights = affine_weights(2, 32)},
      {.format = WeightFormat::gptq, .weights = weight_scheme(8)},
      {.format = WeightFormat::awq, .weights = affine_weights(4, 128), .ignore = {"lm_head", "\"quoted\""}},
      {.format = WeightFormat::pack_quantized, .weights = group_scheme(4, 32), .activation_order = true},
      {.format = WeightFormat::int_quantized,
       .weights = weight_scheme(8),
       .inputs = ActivationConfig{.scheme = per_token},
       .targets = {"Linear", "re:.*conv"},
       .ignore = {"lm_head"}},
      {.format = WeightFormat::naive_quantized, .weights = {.bits = 5, .is_signed = true}},
      {.format = WeightFormat::float_quantized,
       .weights = weight_scheme(8),
       .is_float = true,
       .inputs =
           ActivationConfig{.scheme = {.is_signed = true, .symmetric = true}, .dynamic = false, .is_float = true}},
  };
  for (const QuantizationConfig& config : configs) {
    EXPECT_EQ(parse_quantization_config(to_json(config)), config) << to_json(config);
    EXPECT_EQ(
        parse_quantization_config(R"({"model_type": "gpt2", "quantization_config": )" + to_json(config, -1) + "}"),
        config);
  }
}

TEST(QuantizationConfig, WritesTheFieldsOfHuggingFace) {
  EXPECT_EQ(
      to_json({.format = WeightFormat::gptq, .weights = group_scheme(4, 128)}, -1),
      R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,"sym":true,"checkpoint_format":"gptq"})");
  EXPECT_EQ(to_json({.format = WeightFormat::awq, .weights = affine_weights(4, 64)}, -1),
            R"({"quant_method":"awq","bits":4,"group_size":64,"zero_point":true,"version":"gemm",)"
            R"("modules_to_not_convert":null})");
  EXPECT_THAT(to_json({}, -1), HasSubstr(R"("strategy":"group","group_size":128,"dynamic":false,"actorder":null})"));
}

TEST(QuantizationConfig, ReadsOrdersOfQuantization) {
  const auto order = [](const std::string& value) {
    return parse_quantization_config(compressed(R"({"num_bits": 4, "group_size": 128, "actorder": )" + value + "}"))
        .activation_order;
  };
  EXPECT_TRUE(order("\"group\"") && order("\"dynamic\"") && order("true"));
  EXPECT_FALSE(order("\"weight\"") || order("\"static\"") || order("null") || order("false"));
}

TEST(QuantizationConfig, RejectsBadText) {
  EXPECT_THAT(error_with("{"), HasSubstr("config.json: expected a JSON object, found invalid JSON"));
  EXPECT_THAT(error_with("[]"), HasSubstr("config.json: expected a JSON object, found []"));
  EXPECT_THAT(error_with("{}"), HasSubstr("a text in the field \"quant_method\", found no value"));
  EXPECT_THAT(error_with(std::string(100000, '[')), HasSubstr("at most 16 levels"));
  EXPECT_THAT(
      error_with(R"({"quant_method": "bitsandbytes"})"),
      HasSubstr("\"gptq\", \"awq\" or \"compressed-tensors\" in the field \"quant_method\", found \"bitsandbytes\""));
  EXPECT_THAT(error_with(R"({"quantization_config": 3})"),
              HasSubstr("config.json.quantization_config: expected a JSON"));
}

TEST(QuantizationConfig, RejectsBadFieldsOfGptqAndAwq) {
  const auto gptq = [](const std::string& fields) { return error_with(R"({"quant_method": "gptq", )" + fields + "}"); };
  EXPECT_THAT(gptq(R"("bits": 4)"), HasSubstr("in the field \"group_size\", found no value"));
  EXPECT_THAT(gptq(R"("bits": 9, "group_size": 8)"), HasSubstr("an integer in [1, 8] in the field \"bits\", found 9"));
  EXPECT_THAT(gptq(R"("bits": 18446744073709551615, "group_size": 8)"), HasSubstr("found 18446744073709551615"));
  EXPECT_THAT(gptq(R"("bits": "4", "group_size": 8)"), HasSubstr("in the field \"bits\", found \"4\""));
  EXPECT_THAT(gptq(R"("bits": 5, "group_size": 8)"), HasSubstr("the format gptq does not support 5 bits"));
  EXPECT_THAT(gptq(R"("bits": 4, "group_size": 0)"), HasSubstr("at least 1, or -1 for one scale per output channel"));
  EXPECT_THAT(gptq(R"("bits": 4, "group_size": 8, "sym": 1)"),
              HasSubstr("true or false in the field \"sym\", found 1"));
  EXPECT_THAT(gptq(R"("bits": 4, "group_size": 8, "checkpoint_format": "marlin")"), HasSubstr("found \"marlin\""));
  EXPECT_THAT(gptq(R"("bits": 4, "group_size": 8, "dynamic": {"-:lm_head": {}})"),
              HasSubstr("no options for single layers in the field \"dynamic\""));
  EXPECT_THAT(error_with(R"({"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemv"})"),
              HasSubstr("\"gemm\" in the field \"version\", found \"gemv\""));
  EXPECT_THAT(error_with(R"({"quant_method": "awq", "bits": 4, "group_size": 8, "modules_to_not_convert": [1]})"),
              HasSubstr("a list of texts in the field \"modules_to_not_convert\", found [1]"));
}

TEST(QuantizationConfig, RejectsBadFieldsOfCompressedTensors) {
  EXPECT_THAT(error_with(R"({"quant_method": "compressed-tensors", "config_groups": {}})"),
              HasSubstr("exactly one group of layers"));
  EXPECT_THAT(error_with(compressed("3")), HasSubstr("config_groups.group_0.weights: expected a JSON object, found 3"));
  EXPECT_THAT(error_with(compressed(R"({"num_bits": 4, "strategy": "block"})")), HasSubstr("found \"block\""));
  EXPECT_THAT(error_with(compressed(R"({"num_bits": 4, "strategy": "group"})")), HasSubstr("\"group_size\", found no"));
  EXPECT_THAT(error_with(compressed(R"({"num_bits": 4, "strategy": "token"})")), HasSubstr("does not support int4"));
  EXPECT_THAT(error_with(compressed(R"({"num_bits": 4, "type": "float"})")), HasSubstr("8 bits for floating-point"));
  EXPECT_THAT(error_with(compressed(R"({"num_bits": 8, "type": "float"})")),
              HasSubstr("the format pack-quantized does not support floating-point weights"));
  EXPECT_THAT(error_with(compressed(R"({"num_bits": 4, "actorder": "other"})")), HasSubstr("found \"other\""));
  EXPECT_THAT(error_with(compressed(R"({"num_bits": 4})", R"(, "format": "marlin-24")")), HasSubstr("\"marlin-24\""));
  EXPECT_THAT(
      error_with(compressed(R"({"num_bits": 4})", R"(, "input_activations": {"num_bits": 8, "dynamic": "local"})")),
      HasSubstr("true or false in the field \"dynamic\", found \"local\""));
}

TEST(QuantizationConfig, RejectsOptionsThatFilesCannotState) {
  const auto error_of = [](const QuantizationConfig& config) { return message_of([&] { to_json(config); }); };
  EXPECT_THAT(error_of({.format = WeightFormat::awq, .weights = weight_scheme(8)}),
              HasSubstr("awq does not support 8"));
  EXPECT_THAT(error_of({.format = WeightFormat::float_quantized}), HasSubstr("does not support integer weights"));
  EXPECT_THAT(error_of({.format = WeightFormat::gptq, .inputs = ActivationConfig{}}),
              HasSubstr("no quantization of inputs"));
  EXPECT_THAT(error_of({.format = WeightFormat::gptq, .ignore = {"head"}}), HasSubstr("no list of layers to ignore"));
  EXPECT_THAT(error_of({.format = WeightFormat::awq, .activation_order = true}), HasSubstr("has no group index"));
  EXPECT_THAT(error_of({.format = WeightFormat::gptq, .weights = {.bits = 4}}), HasSubstr("does not support uint4"));
}

}  // namespace bellows::quant
