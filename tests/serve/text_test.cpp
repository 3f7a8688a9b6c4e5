#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>

#include "bellows/serve/repository.h"
#include "bellows/serve/server.h"
#include "bellows/serve/tensor_types.h"
#include "tests/serve/raw_client.h"
#include "tests/serve/test_models.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const char* const vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\ntwo\nthree\n##s\n";

TensorSpec ids(const std::string& name, c10::ScalarType dtype = c10::kLong) {
  return {.name = name, .dtype = dtype, .dims = {-1}};
}

std::vector<int64_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.flatten().to(at::kLong);
  const auto* data = static_cast<const int64_t*>(flat.const_data_ptr());
  return {data, data + flat.numel()};
}

std::string message(const std::function<void()>& action) {
  try {
    action();
  } catch (const RequestError& error) {
    return std::to_string(error.status()) + " " + error.what();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// Loads a model with a configuration, and returns the error.
std::string load_problem(const std::string& config, const std::string& model = "tokens") {
  const TestFolder folder;
  folder.write("m/config.pbtxt", config);
  folder.write("m/vocab.txt", vocabulary);
  folder.write("m/1/model.test", model);
  Repository repository(folder.path(), test_loader(), {});
  return message([&] { repository.load("m"); });
}

const std::string with_tokenizer =
    R"(max_batch_size: 4 parameters { key: "tokenizer" value: { string_value: "vocab.txt" } } )";

}  // namespace

class TextStageTest : public testing::Test {
 protected:
  void SetUp() override { folder_.write("vocab.txt", vocabulary); }
  TextStage stage(std::vector<TensorSpec> inputs, int64_t max_length = 0) const {
    return {{.tokenizer = folder_.path() + "/vocab.txt", .max_length = max_length}, std::move(inputs)};
  }

 private:
  TestFolder folder_;
};

TEST_F(TextStageTest, MakesTheInputsOfTheModel) {
  const BytesTensor texts{{2, 1}, {"One twos", "three"}};
  const auto inputs =
      stage({ids("attention_mask"), ids("input_ids", c10::kInt), ids("token_type_ids"), ids("position_ids")})
          .inputs_of(texts);
  EXPECT_THAT(values(inputs[0]), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 0, 0));
  EXPECT_THAT(values(inputs[1]), ElementsAre(2, 5, 6, 8, 3, 2, 7, 3, 0, 0));
  EXPECT_EQ(inputs[1].scalar_type(), c10::kInt);
  EXPECT_EQ(inputs[1].sizes(), at::IntArrayRef({2, 5}));
  EXPECT_THAT(values(inputs[2]), testing::Each(0));
  EXPECT_THAT(values(inputs[3]), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 0, 0));
}

TEST_F(TextStageTest, TruncatesTexts) {
  const BytesTensor text{{1, 1}, {"one two three"}};
  EXPECT_THAT(values(stage({ids("input_ids")}, 4).inputs_of(text)[0]), ElementsAre(2, 5, 6, 3));
  EXPECT_THAT(values(stage({ids("input_ids")}, 5).inputs_of(text)[0]), ElementsAre(2, 5, 6, 7, 3));
  EXPECT_THAT(message([&] { stage({ids("input_ids")}, 2); }), HasSubstr("more than the 2 special tokens"));
}

TEST_F(TextStageTest, PadsAndTruncatesToAFixedLength) {
  const TextStage fixed = stage({{.name = "input_ids", .dtype = c10::kLong, .dims = {4}}});
  EXPECT_TRUE(fixed.fixed_length());
  EXPECT_THAT(values(fixed.inputs_of({{1, 1}, {"one"}})[0]), ElementsAre(2, 5, 3, 0));
  EXPECT_THAT(values(fixed.inputs_of({{1, 1}, {"one two three"}})[0]), ElementsAre(2, 5, 6, 3));
  EXPECT_FALSE(stage({ids("input_ids")}).fixed_length());
}

TEST_F(TextStageTest, RejectsBadTextsAndModels) {
  const BytesTensor wrong{{2, 1}, {"one", "\xff"}};
  EXPECT_THAT(message([&] { stage({ids("input_ids")}).inputs_of(wrong); }), HasSubstr("400 text 1: "));
  EXPECT_THAT(message([&] { stage({ids("a"), ids("b")}); }), HasSubstr("expected one input for tokens"));
  EXPECT_THAT(message([&] { stage({ids("mask")}); }), HasSubstr("expected one input for tokens"));
  EXPECT_THAT(message([&] { stage({ids("x", c10::kFloat)}); }), HasSubstr("TYPE_INT64"));
  EXPECT_THAT(message([&] { TextStage({.tokenizer = "/none/vocab.txt"}, {ids("x")}); }), HasSubstr("/none/vocab.txt"));
}

TEST(Text, PadsTokensOfBytes) {
  const TextStage stage({.tokenizer = "bytes"}, {ids("input_ids")});
  EXPECT_THAT(values(stage.inputs_of({{2, 1}, {"a", ""}})[0]), ElementsAre(2, 3 + 'a', 1, 2, 1, 0));
}

TEST(Text, RejectsWrongConfigurations) {
  EXPECT_EQ(load_problem(with_tokenizer), "");
  EXPECT_EQ(load_problem(with_tokenizer, "masked"), "");
  EXPECT_THAT(load_problem(with_tokenizer, "identity"), HasSubstr("TYPE_INT64"));
  EXPECT_THAT(load_problem(with_tokenizer + R"(input { name: "x" data_type: TYPE_FP32 dims: 1 })"),
              HasSubstr("one input with the data type TYPE_STRING"));
  EXPECT_THAT(load_problem(R"(parameters { key: "tokenizer" value: { string_value: "vocab.txt" } })"),
              HasSubstr("max_batch_size"));
  EXPECT_THAT(load_problem(R"(max_batch_size: 4 parameters { key: "tokenizer" value: { string_value: "none.txt" } })"),
              HasSubstr("none.txt"));
  EXPECT_THAT(load_problem(R"(max_batch_size: 4 parameters { key: "tokenizer" value: { string_value: "../v.txt" } })"),
              HasSubstr("without a folder"));
  EXPECT_THAT(load_problem(R"(max_batch_size: 4 input { name: "input_ids" data_type: TYPE_STRING dims: -1 })"),
              HasSubstr("the model has Long"));
}

TEST(Text, AnswersTextsWithLabels) {
  const TestFolder folder;
  folder.write("m/config.pbtxt", with_tokenizer +
                                     R"(dynamic_batching { max_queue_delay_microseconds: 60000000 }
    output { name: "y" data_type: TYPE_FP32 dims: 2 label_filename: "labels.txt" })");
  folder.write("m/vocab.txt", vocabulary);
  folder.write("m/labels.txt", "large\nsmall\n");
  folder.write("m/1/model.test", "tokens");
  folder.write("n/config.pbtxt", with_tokenizer);
  folder.write("n/vocab.txt", vocabulary);
  folder.write("n/1/model.test", "tokens");
  ServerOptions options{.repository = folder.path()};
  options.http.port = 0;
  Server server(options, test_loader());
  server.wait_until_loaded();
  const auto ask = [&](const std::string& request) {
    RawClient client(server.port());
    client.send(request);
    return client.receive();
  };
  const json metadata = json::parse(ask(get("/v2/models/m")).body);
  EXPECT_EQ(metadata["inputs"], json::parse(R"([{"name":"text","datatype":"BYTES","shape":[-1,1]}])"));
  take_batch_sizes();
  const auto infer = [&](const std::string& texts, int64_t rows) {
    return ask(post("/v2/models/m/infer", R"({"inputs":[{"name":"text","datatype":"BYTES","shape":[)" +
                                              std::to_string(rows) + R"(,1],"data":)" + texts +
                                              R"(}],"outputs":[{"name":"y","parameters":{"classification":1}}]})"));
  };
  // Two requests of different lengths form one batch of 4 rows, and thus do not wait.
  auto first = std::async(std::launch::async, [&] { return infer(R"(["one", "two three ones"])", 2); });
  const RawResponse second = infer(R"(["three", "two"])", 2), other = first.get();
  ASSERT_EQ(second.status, 200) << second.body;
  EXPECT_EQ(json::parse(second.body)["outputs"][0]["data"], json({"12.000000:0:large", "11.000000:0:large"}));
  EXPECT_EQ(json::parse(other.body)["outputs"][0]["data"], json({"10.000000:0:large", "31.000000:0:large"}));
  EXPECT_THAT(take_batch_sizes(), ElementsAre(4));
  const RawResponse bad = infer(R"(["one"])", 2);
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(ask(post("/v2/models/n/infer", "one two", "Inference-Header-Content-Length: 0\r\n")).status, 200);
  const RawResponse generated = ask(post("/v2/models/n/generate", R"({"text":"one two","id":"7","more":1})"));
  EXPECT_EQ(json::parse(generated.body),
            json::parse(R"({"id":"7","model_name":"n","model_version":"1","y":[16.0,4.0]})"));
  const RawResponse stream = ask(post("/v2/models/n/versions/1/generate_stream", R"({"text":["one two"]})"));
  EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(stream.body, "data: {\"model_name\":\"n\",\"model_version\":\"1\",\"y\":[16,4]}\n\n");
  EXPECT_THAT(ask(post("/v2/models/n/generate", "[]")).body, HasSubstr("expected a JSON object"));
  EXPECT_THAT(ask(post("/v2/models/n/generate", "{}")).body, HasSubstr("missing input"));
  EXPECT_THAT(ask(post("/v2/models/n/generate", R"({"text":["one","two"]})")).body, HasSubstr("got 2 values"));
  EXPECT_THAT(ask(post("/v2/models/n/generate", R"({"text":{"a":1}})")).body, HasSubstr("must consist of strings"));
}

}  // namespace bellows::serve
