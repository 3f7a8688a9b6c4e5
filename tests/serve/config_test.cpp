#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "bellows/serve/model_config.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class FixedModel final : public runtime::InferenceModel {
 public:
  FixedModel(std::vector<runtime::TensorInfo> inputs, std::vector<runtime::TensorInfo> outputs)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}
  const std::vector<runtime::TensorInfo>& inputs() const override { return inputs_; }
  const std::vector<runtime::TensorInfo>& outputs() const override { return outputs_; }
  std::vector<at::Tensor> run(std::span<const at::Tensor>) override { return {}; }

 private:
  std::vector<runtime::TensorInfo> inputs_, outputs_;
};

FixedModel two_by_two() {
  return {{{"a", c10::kFloat, {-1, 3}}, {"b", c10::kLong, {-1, -1}}},
          {{"y", c10::kFloat, {-1, 5}}, {"z", c10::kFloat, {-1}}}};
}

FixedModel script() {
  return {{{"x", c10::ScalarType::Undefined, {}}}, {{"output", c10::ScalarType::Undefined, {}}}};
}

const char* const full = R"(
name: "m" backend: "onnxruntime" max_batch_size: 16
input [ { name: "a" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "b" data_type: TYPE_INT64 dims: -1 } ]
output { name: "y" data_type: TYPE_FP32 dims: 5 label_filename: "labels.txt" }

instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 } ]

dynamic_batching {
  preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 250 priority_levels: 2 default_priority_level: 1
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9 allow_timeout_override: true max_queue_size: 5 }
  priority_queue_policy { key: 2 value { max_queue_size: 7 } }
}
version_policy { specific { versions: [ 3, 1 ] } }
model_warmup { name: "w" batch_size: 2 count: 3 inputs { key: "a" value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }
default_model_filename: "net.onnx"
)";

ModelConfig parse(const std::string& text) {
  std::vector<std::string> warnings;
  return parse_model_config(text, "config.pbtxt", warnings);
}

std::string config_problem(const std::string& text) {
  try {
    parse(text);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

std::string completion_problem(const std::string& text, const runtime::InferenceModel& model) {
  ModelConfig config = parse(text);
  try {
    complete_model_config(config, model);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace

TEST(ModelConfig, ReadsAllFields) {
  const ModelConfig config = parse(full);
  EXPECT_EQ(config.name, "m");
  EXPECT_EQ(config.backend, "onnxruntime");
  EXPECT_EQ(config.model_file, "net.onnx");
  EXPECT_EQ(config.max_batch_size, 16);
  ASSERT_EQ(config.inputs.size(), 2u);
  EXPECT_EQ(config.inputs[1].dtype, c10::kLong);
  EXPECT_THAT(config.inputs[1].dims, ElementsAre(-1));
  EXPECT_EQ(config.outputs.at(0).label_file, "labels.txt");
  EXPECT_EQ(config.instances, 3);
  ASSERT_TRUE(config.dynamic_batching);
  EXPECT_THAT(config.dynamic_batching->preferred_sizes, ElementsAre(4, 8));
  EXPECT_EQ(config.dynamic_batching->max_queue_delay_us, 250u);
  EXPECT_EQ(config.dynamic_batching->default_priority_level, 1u);
  const QueuePolicy& policy = config.dynamic_batching->default_policy;
  EXPECT_TRUE(policy.delay_on_timeout && policy.allow_timeout_override);
  EXPECT_EQ(policy.default_timeout_us, 9u);
  EXPECT_EQ(policy.max_queue_size, 5u);
  EXPECT_EQ(config.dynamic_batching->priority_policies.at(2).max_queue_size, 7u);
  EXPECT_EQ(config.version_policy.kind, VersionPolicy::Kind::specific);
  ASSERT_EQ(config.warmups.size(), 1u);
  EXPECT_EQ(config.warmups[0].count, 3);
  EXPECT_FALSE(config.warmups[0].inputs.at(0).random);
}

TEST(ModelConfig, AnEmptyFileHasDefaults) {
  const ModelConfig config = parse("");
  EXPECT_EQ(config.max_batch_size, 0);
  EXPECT_EQ(config.instances, 1);
  EXPECT_FALSE(config.dynamic_batching);
  EXPECT_EQ(config.version_policy.kind, VersionPolicy::Kind::latest);
}

TEST(ModelConfig, NamesUnknownFields) {
  std::vector<std::string> warnings;
  const ModelConfig config = parse_model_config("name: \"m\"\noptimization { graph { level: 1 } }\nmax_batch_size: 4\n",
                                                "config.pbtxt", warnings);
  EXPECT_EQ(config.max_batch_size, 4);
  EXPECT_THAT(warnings, testing::Contains(HasSubstr("optimization")));
  EXPECT_THAT(warnings.at(0), HasSubstr("config.pbtxt:2"));
}

TEST(ModelConfig, ReadsParameters) {
  const std::string on = "parameters { key: \"batch_invariant\" value: { string_value: \"true\" } }";
  EXPECT_FALSE(parse("").batch_invariant);
  EXPECT_TRUE(parse("max_batch_size: 4 " + on).batch_invariant);
  EXPECT_THAT(config_problem(on), HasSubstr("batch_invariant needs a max_batch_size"));
  EXPECT_THAT(config_problem("parameters { key: \"batch_invariant\" value: { string_value: \"1\" } }"),
              HasSubstr("expected the string_value \"true\" or \"false\", got \"1\""));
  std::vector<std::string> warnings;
  parse_model_config("parameters { key: \"colour\" value: { string_value: \"red\" } }", "config.pbtxt", warnings);
  EXPECT_THAT(warnings, testing::Contains(HasSubstr("parameters: \"colour\" has no effect")));
}

TEST(ModelConfig, MapsTritonsNamesOfBackends) {
  EXPECT_EQ(parse("platform: \"onnxruntime_onnx\"").backend, "onnxruntime");
  EXPECT_EQ(parse("backend: \"pytorch\"").backend, "libtorch");
  EXPECT_EQ(parse("platform: \"tensorrt_plan\"").backend, "tensorrt");
  EXPECT_EQ(parse("backend: \"program\"").backend, "program");
}

TEST(ModelConfig, RejectsWrongValues) {
  EXPECT_THAT(config_problem("max_batch_size: x"), HasSubstr("config.pbtxt:1"));
  EXPECT_THAT(config_problem("name: \"m"), HasSubstr("config.pbtxt:1"));
  EXPECT_THAT(config_problem("max_batch_size: -1"), HasSubstr("max_batch_size: expected an integer from 0"));
  EXPECT_THAT(config_problem("input { data_type: TYPE_FP32 }"), HasSubstr("input 0 has no name"));
  EXPECT_THAT(config_problem("input { name: \"a\" }"), HasSubstr("data_type TYPE_INVALID is not supported"));
  EXPECT_THAT(config_problem("input { name: \"a\" data_type: TYPE_FP32 dims: 0 }"), HasSubstr("dims"));
  EXPECT_THAT(config_problem("input { name: \"a\" data_type: TYPE_FP32 } input { name: \"a\" data_type: TYPE_FP32 }"),
              HasSubstr("twice"));
  EXPECT_THAT(config_problem("dynamic_batching { }"), HasSubstr("needs a max_batch_size"));
  EXPECT_THAT(config_problem("max_batch_size: 4 dynamic_batching { preferred_batch_size: 5 }"),
              HasSubstr("from 1 to 4, got 5"));
  EXPECT_THAT(config_problem("max_batch_size: 4 dynamic_batching { priority_levels: 3 }"),
              HasSubstr("default_priority_level"));
  EXPECT_THAT(config_problem("max_batch_size: 4 dynamic_batching { priority_levels: 18446744073709551615 }"),
              HasSubstr("priority_levels"));
  EXPECT_THAT(config_problem("max_batch_size: 4 dynamic_batching { priority_queue_policy { key: 1 } }"),
              HasSubstr("no level 1"));
  EXPECT_THAT(config_problem("instance_group { count: 100000 }"), HasSubstr("count"));
  EXPECT_THAT(config_problem("default_model_filename: \"../x\""), HasSubstr("without a folder"));
  EXPECT_THAT(config_problem("model_warmup { inputs { key: \"a\" value { data_type: TYPE_FP32 } } }"),
              HasSubstr("zero_data or random_data"));
  EXPECT_NE(config_problem(std::string(100000, '{')), "");
  std::string deep = "x ";
  for (int i = 0; i < 100000; ++i) deep += "{ x ";
  EXPECT_NE(config_problem(deep), "");
}

TEST(ModelConfig, ReadsParametersOfTextsAndPadding) {
  const auto parameter = [](const std::string& key, const std::string& value) {
    return " parameters { key: \"" + key + "\" value: { string_value: \"" + value + "\" } }";
  };
  const std::string head = "max_batch_size: 4";
  const ModelConfig config = parse(head + parameter("pad_axis", "2") + parameter("pad_buckets", "32, 16") +
                                   parameter("pad_values", "x=0.5, y=-1") + parameter("tokenizer", "vocab.txt") +
                                   parameter("tokenizer_max_length", "128"));
  ASSERT_TRUE(config.padding && config.text);
  EXPECT_EQ(config.padding->axis, 2);
  EXPECT_THAT(config.padding->buckets, ElementsAre(16, 32));
  EXPECT_EQ(config.padding->values.at("x"), 0.5);
  EXPECT_EQ(config.padding->values.at("y"), -1);
  EXPECT_EQ(config.text->tokenizer, "vocab.txt");
  EXPECT_EQ(config.text->max_length, 128);
  EXPECT_EQ(json::parse(model_config_json(config))["parameters"]["pad_axis"]["string_value"], "2");
  EXPECT_FALSE(parse(head).padding);
  std::vector<std::string> warnings;
  parse_model_config(parameter("own", "1"), "config.pbtxt", warnings);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("\"own\" has no effect")));
  EXPECT_THAT(config_problem(parameter("pad_axis", "1")), HasSubstr("needs a max_batch_size"));
  EXPECT_THAT(config_problem(head + parameter("pad_axis", "0")),
              HasSubstr("expected an integer from 1 to 63, got \"0\""));
  EXPECT_THAT(config_problem(head + parameter("pad_axis", "one")), HasSubstr("got \"one\""));
  EXPECT_THAT(config_problem(head + parameter("pad_buckets", "16")), HasSubstr("need pad_axis"));
  EXPECT_THAT(config_problem(head + parameter("pad_axis", "1") + parameter("pad_buckets", "16,,32")),
              HasSubstr("got \"\""));
  EXPECT_THAT(config_problem(head + parameter("pad_axis", "1") + parameter("pad_values", "x")),
              HasSubstr("input_ids=0"));
  EXPECT_THAT(config_problem(head + parameter("pad_axis", "1") + parameter("pad_values", "=1")),
              HasSubstr("input_ids=0"));
  EXPECT_THAT(config_problem(head + parameter("tokenizer", "")), HasSubstr("expected the name of a file"));
  EXPECT_THAT(config_problem(head + parameter("tokenizer_max_length", "8")), HasSubstr("needs tokenizer"));
}

TEST(ModelConfig, ReadsSequenceBatching) {
  const ModelConfig config = parse(R"(max_batch_size: 4 sequence_batching {
    max_sequence_idle_microseconds: 77
    direct { }
    control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 3, 5 ] } }
    control_input { name: "I" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
    state { input_name: "i" output_name: "o" data_type: TYPE_FP16 dims: [ -1, 2 ] } })");
  ASSERT_TRUE(config.sequences);
  EXPECT_EQ(config.sequences->max_idle_us, 77u);
  ASSERT_EQ(config.sequences->controls.size(), 2u);
  EXPECT_EQ(config.sequences->controls[0].dtype, c10::kInt);
  EXPECT_EQ(config.sequences->controls[0].if_true, 5);
  EXPECT_EQ(config.sequences->controls[1].kind, SequenceControl::Kind::id);
  EXPECT_THAT(config.sequences->states.at(0).initial_dims, ElementsAre(0, 2));
  const auto wrong = [](const std::string& text) {
    return config_problem("max_batch_size: 4 sequence_batching { " + text + "}");
  };
  EXPECT_THAT(wrong("control_input { name: \"S\" }"), HasSubstr("expected a name and one control"));
  EXPECT_THAT(wrong("control_input { name: \"S\" control { fp32_false_true: 1 } }"), HasSubstr("expected two values"));
  EXPECT_THAT(wrong("control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } }"),
              HasSubstr("TYPE_UINT64"));
  EXPECT_THAT(wrong("state { input_name: \"i\" data_type: TYPE_FP32 }"), HasSubstr("input_name and output_name"));
  EXPECT_THAT(wrong("state { input_name: \"i\" output_name: \"o\" data_type: TYPE_STRING dims: 1 }"),
              HasSubstr("cannot be of TYPE_STRING"));
  EXPECT_THAT(wrong("state { input_name: \"i\" output_name: \"o\" data_type: TYPE_FP32 dims: 1 initial_state { } }"),
              HasSubstr("zero_data: true"));
  EXPECT_THAT(wrong("state { input_name: \"i\" output_name: \"o\" data_type: TYPE_FP32 dims: 1000000000000 }"),
              HasSubstr("at most"));
  EXPECT_THAT(config_problem("max_batch_size: 4 dynamic_batching { } sequence_batching { }"),
              HasSubstr("cannot be combined"));
}

// A mutated configuration is either valid or throws c10::ValueError.
TEST(ModelConfig, MutationsAreRejectedOrValid) {
  std::mt19937 random(3);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = full;
    for (int change = 0; change < 1 + static_cast<int>(random() % 3); ++change) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0)
        text[at] = "0123456789{}[]:\"-abc \n"[random() % 22];
      else
        text.erase(at, random() % 12);
    }
    accepted += config_problem(text).empty() ? 1 : 0;
  }
  EXPECT_GT(accepted, 30);
}

TEST(VersionPolicy, SelectsVersions) {
  EXPECT_THAT(parse("").version_policy.select({1, 10, 2}), ElementsAre(10));
  EXPECT_THAT(parse("version_policy { latest { num_versions: 2 } }").version_policy.select({1, 10, 2}),
              ElementsAre(2, 10));
  EXPECT_THAT(parse("version_policy { all { } }").version_policy.select({10, 2}), ElementsAre(2, 10));
  EXPECT_THAT(parse("version_policy { specific { versions: [ 1, 7 ] } }").version_policy.select({1, 2}),
              ElementsAre(1));
}

TEST(Completion, DerivesInputsAndOutputsFromTheModel) {
  ModelConfig config = parse("");
  const TensorOrder order = complete_model_config(config, two_by_two());
  ASSERT_EQ(config.inputs.size(), 2u);
  EXPECT_EQ(config.inputs[0].name, "a");
  EXPECT_THAT(config.inputs[0].dims, ElementsAre(-1, 3));
  EXPECT_THAT(order.outputs, ElementsAre(0, 1));
  ModelConfig batched = parse("max_batch_size: 4");
  complete_model_config(batched, two_by_two());
  EXPECT_THAT(batched.inputs[0].dims, ElementsAre(3));
  EXPECT_THAT(batched.outputs[1].dims, ElementsAre());
}

TEST(Completion, OrdersTensorsByName) {
  ModelConfig config = parse(R"(max_batch_size: 4 input { name: "b" data_type: TYPE_INT64 dims: 7 }
                                input { name: "a" data_type: TYPE_FP32 dims: 3 } output { name: "z" data_type: TYPE_FP32 })");
  const TensorOrder order = complete_model_config(config, two_by_two());
  EXPECT_THAT(order.inputs, ElementsAre(1, 0));
  EXPECT_THAT(order.outputs, ElementsAre(1));
}

TEST(Completion, ReadsPositionsOfTritonsNames) {
  ModelConfig config = parse(R"(input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ -1, 3 ] }
                                output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, 2 ] })");
  EXPECT_THAT(complete_model_config(config, script()).inputs, ElementsAre(0));
}

TEST(Completion, RejectsContradictions) {
  EXPECT_THAT(completion_problem("", script()), HasSubstr("config.pbtxt"));
  const auto one = [](const std::string& input) {
    return completion_problem("max_batch_size: 4 input { " + input + " }", two_by_two());
  };
  EXPECT_THAT(one(R"(name: "q" data_type: TYPE_FP32 dims: 3)"), HasSubstr("which the model does not have"));
  EXPECT_THAT(one(R"(name: "a" data_type: TYPE_FP64 dims: 3)"), HasSubstr("TYPE_FP64"));
  EXPECT_THAT(one(R"(name: "a" data_type: TYPE_FP32 dims: 4)"), HasSubstr("[4]"));
  EXPECT_THAT(one(R"(name: "a" data_type: TYPE_FP32 dims: 3)"), HasSubstr("describes 1 inputs, but the model has 2"));
  const FixedModel fixed({{"a", c10::kFloat, {1, 3}}}, {{"y", c10::kFloat, {1, 5}}});
  EXPECT_THAT(completion_problem("max_batch_size: 4", fixed), HasSubstr("no batch axis"));
}

TEST(ConfigJson, HasTritonsFields) {
  const json config = json::parse(model_config_json(parse(full)));
  EXPECT_EQ(config["max_batch_size"], 16);
  EXPECT_EQ(config["input"][1], json({{"name", "b"}, {"data_type", "TYPE_INT64"}, {"dims", {-1}}}));
  EXPECT_EQ(config["output"][0]["label_filename"], "labels.txt");
  EXPECT_EQ(config["dynamic_batching"]["preferred_batch_size"], json({4, 8}));
  EXPECT_EQ(config["dynamic_batching"]["priority_queue_policy"]["2"]["max_queue_size"], 7);
  EXPECT_EQ(config["version_policy"]["specific"]["versions"], json({3, 1}));
  EXPECT_EQ(config["model_warmup"][0]["inputs"]["a"]["zero_data"], true);
}

TEST(TensorTypes, CountsElementsWithoutOverflow) {
  EXPECT_EQ(element_count(std::vector<int64_t>{2, 3}), 6);
  EXPECT_EQ(element_count(std::vector<int64_t>{}), 1);
  EXPECT_EQ(element_count(std::vector<int64_t>{0, 5}), 0);
  EXPECT_EQ(element_count(std::vector<int64_t>{-1, 5}), std::nullopt);
  EXPECT_EQ(element_count(std::vector<int64_t>{INT64_MAX, 2}), std::nullopt);
  EXPECT_EQ(element_count(std::vector<int64_t>{0, INT64_MAX, 2}), std::nullopt);
}

}  // namespace bellows::serve
