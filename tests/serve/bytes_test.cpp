#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "bellows/serve/tensor_types.h"
#include "bellows/serve/v2_protocol.h"
#include "tests/serve/requests.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

ModelSignature text_model(std::vector<int64_t> dims = {1}) {
  return {.name = "m",
          .version = "1",
          .max_batch_size = 4,
          .inputs = {{.name = "text", .dtype = bytes_dtype, .dims = dims}},
          .outputs = {{.name = "same", .dtype = bytes_dtype, .dims = dims}}};
}

std::string with(const std::string& shape, const std::string& rest) {
  return R"({"inputs":[{"name":"text","datatype":"BYTES","shape":)" + shape + "," + rest + "}]}";
}

std::string binary(size_t size) {
  return R"("parameters":{"binary_data_size":)" + std::to_string(size) + "}";
}

std::string element(const std::string& text) {
  std::string encoded;
  encode_bytes(encoded, {text});
  return encoded;
}

std::string text_problem(const std::string& header, const std::string& data = "") {
  return error_of(status_bad_request, [&] { parse_infer_request(header + data, header.size(), text_model()); });
}

}  // namespace

TEST(Bytes, ReadsJsonStrings) {
  const InferRequest request =
      parse_infer_request(with("[2,1]", R"("data":[["one"],["tw\u00e4 \u0000"]])"), std::nullopt, text_model());
  EXPECT_EQ(request.rows, 2);
  EXPECT_FALSE(request.inputs.at(0).defined());
  const BytesTensor& texts = *request.bytes.at(0);
  EXPECT_THAT(texts.sizes, ElementsAre(2, 1));
  EXPECT_THAT(texts.values, ElementsAre("one", std::string("tw\xc3\xa4 \0", 6)));
}

TEST(Bytes, ReadsBinaryElements) {
  const std::string data = element("one") + element("") + element(std::string("\0\xff", 2));
  const std::string header = with("[3,1]", binary(data.size()));
  const InferRequest request = parse_infer_request(header + data, header.size(), text_model());
  EXPECT_THAT(request.bytes.at(0)->values, ElementsAre("one", "", std::string("\0\xff", 2)));
}

TEST(Bytes, ReadsOneTextWithoutJson) {
  const InferRequest request = parse_infer_request("a text", 0, text_model());
  EXPECT_THAT(request.bytes.at(0)->values, ElementsAre("a text"));
  EXPECT_THAT(request.bytes.at(0)->sizes, ElementsAre(1, 1));
  EXPECT_THROW(parse_infer_request("a text", 0, text_model({2})), RequestError);
}

TEST(Bytes, RejectsWrongElements) {
  EXPECT_THAT(text_problem(with("[1,1]", R"("data":[1])")), HasSubstr("must consist of strings, got an integer"));
  EXPECT_THAT(text_problem(with("[2,1]", R"("data":["a"])")), HasSubstr("has 2 elements, but data has 1"));
  EXPECT_THAT(text_problem(with("[1,1]", R"("data":["a","b"])")), HasSubstr("data has more"));
  EXPECT_THAT(text_problem(with("[4,1]", binary(4)), std::string(4, '\0')), HasSubstr("has only 4 bytes"));
  EXPECT_THAT(text_problem(with("[1,1]", binary(6)), std::string("\3\0\0\0ab", 6)),
              HasSubstr("states 3 bytes, but only 2"));
  EXPECT_THAT(text_problem(with("[1,1]", binary(8)),
                           "\xff\xff\xff\xff"
                           "abcd"),
              HasSubstr("states 4294967295 bytes"));
  EXPECT_THAT(text_problem(with("[2,1]", binary(8)), std::string("\2\0\0\0abcd", 8)), HasSubstr("no complete length"));
  EXPECT_THAT(text_problem(with("[1,1]", binary(5)), std::string("\0\0\0\0x", 5)), HasSubstr("1 bytes follow"));
  EXPECT_THAT(text_problem(with("[1,1]", binary(9)), element("a")), HasSubstr("only 5 bytes of binary data are left"));
  EXPECT_THAT(text_problem(R"({"inputs":[{"name":"text","datatype":"UINT8","shape":[1,1],"data":["a"]}]})"),
              HasSubstr("expected the datatype BYTES"));
  EXPECT_THAT(text_problem(R"({"inputs":[{"name":"text","datatype":"BYTES","shape":[1,1],"data":["a"]},)"
                           R"({"name":"text","datatype":"BYTES","shape":[1,1],"data":["a"]}]})"),
              HasSubstr("given twice"));
}

TEST(Bytes, BoundsMemoryByTheSizeOfTheRequest) {
  const std::string huge =
      R"({"inputs":[{"name":"text","datatype":"BYTES","shape":[1,4611686018427387904],"data":[]}]})";
  EXPECT_THROW(parse_infer_request(huge, std::nullopt, text_model({-1})), RequestError);
  const std::string header =
      R"({"inputs":[{"name":"text","datatype":"BYTES","shape":[1,4611686018427387904],"parameters":{"binary_data_size":4}}]})";
  EXPECT_THROW(parse_infer_request(header + "abcd", header.size(), text_model({-1})), RequestError);
}

TEST(Bytes, WritesJsonAndBinary) {
  const BytesTensors values{std::make_shared<BytesTensor>(BytesTensor{{2, 1}, {"a\"b", "c\xff"}})};
  const std::vector<at::Tensor> none(1);
  const std::vector<RequestedOutput> as_json{{.index = 0}}, as_binary{{.index = 0, .binary = true}};
  const InferResponse text = format_infer_response(text_model(), "", as_json, none, values);
  const json output = json::parse(text.body)["outputs"][0];
  EXPECT_EQ(output["datatype"], "BYTES");
  EXPECT_EQ(output["shape"], json({2, 1}));
  EXPECT_EQ(output["data"], json({"a\"b", "c\xef\xbf\xbd"}));
  const InferResponse bytes = format_infer_response(text_model(), "", as_binary, none, values);
  EXPECT_EQ(bytes.body.substr(*bytes.header_bytes), element("a\"b") + element("c\xff"));
  const std::vector<RequestedOutput> classes{{.index = 0, .classes = 1}};
  EXPECT_THROW(format_infer_response(text_model(), "", classes, none, values), RequestError);
  const BytesTensors wrong{std::make_shared<BytesTensor>(BytesTensor{{2, 2}, {"a", "b", "c", "d"}})};
  EXPECT_THROW(format_infer_response(text_model(), "", as_json, none, wrong), RequestError);
}

TEST(Bytes, ReadsSequenceParameters) {
  const auto read = [](const std::string& parameters) {
    return parse_infer_request(R"({"parameters":)" + parameters +
                                   R"(,"inputs":[{"name":"text","datatype":"BYTES","shape":[1,1],"data":["a"]}]})",
                               std::nullopt, text_model())
        .sequence;
  };
  const SequenceFlags flags =
      read(R"({"sequence_id":18446744073709551615,"sequence_start":true,"sequence_end":false})");
  EXPECT_EQ(flags.id, UINT64_MAX);
  EXPECT_TRUE(flags.start);
  EXPECT_FALSE(flags.end);
  EXPECT_EQ(read("{}").id, 0u);
  EXPECT_THROW(read(R"({"sequence_id":"seven"})"), RequestError);
  EXPECT_THROW(read(R"({"sequence_id":-1})"), RequestError);
  EXPECT_THROW(read(R"({"sequence_start":1})"), RequestError);
}

}  // namespace bellows::serve
