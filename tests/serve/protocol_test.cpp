#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "bellows/serve/v2_protocol.h"
#include "tests/serve/requests.h"

namespace bellows::serve {

namespace {

using nlohmann::json;

ModelSignature two_inputs() {
  return {
      .name = "m",
      .version = "1",
      .max_batch_size = 8,
      .inputs = {{.name = "x", .dtype = c10::kFloat, .dims = {2}}, {.name = "n", .dtype = c10::kLong, .dims = {-1}}},
      .outputs = {{.name = "y", .dtype = c10::kFloat, .dims = {2}}, {.name = "z", .dtype = c10::kHalf, .dims = {1}}}};
}

const char* const valid = R"({"id":"r1","parameters":{"priority":2,"timeout":500},"inputs":[
  {"name":"n","datatype":"INT64","shape":[2,3],"data":[[1,2,3],[4,5,-6]]},
  {"data":[0.5,1,-2e1,3],"name":"x","shape":[2,2],"datatype":"FP32"}],
  "outputs":[{"name":"z","parameters":{"binary_data":true}},{"name":"y","parameters":{"classification":1}}]})";

/// Returns the message of the error, or "" if the request is valid.
std::string request_problem(const std::string& body, std::optional<size_t> header = std::nullopt,
                            const ModelSignature& model = two_inputs(), int status = status_bad_request) {
  return error_of(status, [&] { parse_infer_request(body, header, model); });
}

void expect_problem(const std::string& body, const std::string& part, const ModelSignature& model = two_inputs()) {
  const std::string message = request_problem(body, std::nullopt, model);
  EXPECT_NE(message.find(part), std::string::npos) << body << "\n" << message;
}

/// A request for one_input().
std::string with(const std::string& datatype, const std::string& shape, const std::string& data) {
  return R"({"inputs":[{"name":"x","datatype":")" + datatype + R"(","shape":)" + shape + R"(,"data":)" + data + "}]}";
}

template <class Value>
std::vector<Value> values(const at::Tensor& tensor) {
  const auto* data = static_cast<const Value*>(tensor.const_data_ptr());
  return {data, data + tensor.numel()};
}

}  // namespace

TEST(Request, ReadsValuesAndParameters) {
  const InferRequest request = parse_infer_request(valid, std::nullopt, two_inputs());
  EXPECT_EQ(request.id, "r1");
  EXPECT_EQ(request.rows, 2);
  EXPECT_EQ(request.priority, 2u);
  EXPECT_EQ(request.timeout_us, 500u);
  ASSERT_EQ(request.inputs.size(), 2u);
  EXPECT_EQ(values<float>(request.inputs[0]), (std::vector<float>{0.5F, 1, -20, 3}));
  EXPECT_EQ(values<int64_t>(request.inputs[1]), (std::vector<int64_t>{1, 2, 3, 4, 5, -6}));
  EXPECT_EQ(request.inputs[1].sizes(), at::IntArrayRef({2, 3}));
  ASSERT_EQ(request.outputs.size(), 2u);
  EXPECT_EQ(request.outputs[0].index, 1u);
  EXPECT_TRUE(request.outputs[0].binary);
  EXPECT_EQ(request.outputs[1].classes, 1);
}

TEST(Request, AllOutputsAreTheDefault) {
  std::string body = with("FP32", "[1]", "[1]");
  EXPECT_FALSE(parse_infer_request(body, std::nullopt, one_input(c10::kFloat)).outputs.at(0).binary);
  body.insert(1, R"("parameters":{"binary_data_output":true},)");
  EXPECT_TRUE(parse_infer_request(body, std::nullopt, one_input(c10::kFloat)).outputs.at(0).binary);
}

TEST(Request, ReadsEveryDtypeFromJson) {
  const auto read = [](c10::ScalarType dtype, const char* name, const char* data) {
    return parse_infer_request(with(name, "[2]", data), std::nullopt, one_input(dtype)).inputs.at(0);
  };
  using c10::ScalarType;
  EXPECT_EQ(values<uint8_t>(read(ScalarType::Byte, "UINT8", "[0,255]")), (std::vector<uint8_t>{0, 255}));
  EXPECT_EQ(values<uint16_t>(read(ScalarType::UInt16, "UINT16", "[0,65535]")), (std::vector<uint16_t>{0, 65535}));
  EXPECT_EQ(values<uint32_t>(read(ScalarType::UInt32, "UINT32", "[0,4294967295]")),
            (std::vector<uint32_t>{0, 4294967295U}));
  EXPECT_EQ(values<uint64_t>(read(ScalarType::UInt64, "UINT64", "[0,18446744073709551615]")),
            (std::vector<uint64_t>{0, std::numeric_limits<uint64_t>::max()}));
  EXPECT_EQ(values<int8_t>(read(ScalarType::Char, "INT8", "[-128,127]")), (std::vector<int8_t>{-128, 127}));
  EXPECT_EQ(values<int16_t>(read(ScalarType::Short, "INT16", "[-32768,1]")), (std::vector<int16_t>{-32768, 1}));
  EXPECT_EQ(values<int32_t>(read(ScalarType::Int, "INT32", "[-2147483648,1]")),
            (std::vector<int32_t>{std::numeric_limits<int32_t>::min(), 1}));
  EXPECT_EQ(values<int64_t>(read(ScalarType::Long, "INT64", "[-9223372036854775808,1]")),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::min(), 1}));
  EXPECT_EQ(values<double>(read(ScalarType::Double, "FP64", "[1e300,0.1]")), (std::vector<double>{1e300, 0.1}));
  EXPECT_EQ(values<uint8_t>(read(ScalarType::Bool, "BOOL", "[true,false]")), (std::vector<uint8_t>{1, 0}));
}

TEST(Request, RejectsWrongValues) {
  expect_problem(with("UINT8", "[1]", "[256]"), "out of the range of UINT8", one_input(c10::kByte));
  expect_problem(with("UINT8", "[1]", "[-1]"), "out of the range of UINT8", one_input(c10::kByte));
  expect_problem(with("INT64", "[1]", "[9223372036854775808]"), "out of the range of INT64", one_input(c10::kLong));
  expect_problem(with("INT32", "[1]", "[1.5]"), "must consist of integers, got a fraction", one_input(c10::kInt));
  expect_problem(with("FP32", "[1]", "[1e39]"), "out of the range of FP32", one_input(c10::kFloat));
  expect_problem(with("FP32", "[1]", "[\"1\"]"), "must consist of numbers, got a string", one_input(c10::kFloat));
  expect_problem(with("FP32", "[1]", "[null]"), "got null", one_input(c10::kFloat));
  expect_problem(with("BOOL", "[1]", "[1]"), "expected true or false", one_input(c10::kBool));
  expect_problem(with("FP16", "[1]", "[1]"), "binary", one_input(c10::kHalf));
  expect_problem(with("BF16", "[1]", "[1]"), "binary", one_input(c10::kBFloat16));
}

TEST(Request, RejectsMalformedJson) {
  for (const char* body :
       {"", "{", "[]", "null", "1", "{\"inputs\":[}", "{\"inputs\":[]} x", "{\"inputs\":\"\xff\"}", "\0", "{'a':1}"})
    EXPECT_NE(request_problem(body), "") << body;
  expect_problem("{\"inputs\":", "not valid JSON");
  expect_problem("{}", "missing \"inputs\"");
  expect_problem(R"({"inputs":{}})", "expected an array, got an object");
  expect_problem(R"({"inputs":[1]})", "expected an object");
  expect_problem(R"({"id":7,"inputs":[]})", "id: expected a string, got an integer");
  expect_problem(std::string(5000, '['), "not valid JSON");
}

TEST(Request, RejectsWrongNamesShapesAndDtypes) {
  const ModelSignature model = one_input(c10::kFloat, {2, -1});
  expect_problem(R"({"inputs":[]})", "missing input \"x\"", model);
  expect_problem(R"({"inputs":[{"name":"q"}]})", "unexpected input \"q\"", model);
  expect_problem(R"({"inputs":[{"shape":[1]}]})", "missing \"name\"", model);
  expect_problem(with("FP64", "[2,1]", "[1,2]"), "expected the datatype FP32", model);
  expect_problem(with("BYTES", "[2,1]", "[1,2]"), "expected the datatype FP32", model);
  expect_problem(with("FP32", "[3,1]", "[1,2,3]"), "expected [2, -1], got [3, 1]", model);
  expect_problem(with("FP32", "[2]", "[1,2]"), "expected [2, -1], got [2]", model);
  expect_problem(with("FP32", "[2,-1]", "[1,2]"), "at least 0", model);
  expect_problem(with("FP32", "[2,1.5]", "[1,2]"), "shape: expected integers", model);
  expect_problem(with("FP32", "2", "[1,2]"), "shape: expected an array", model);
  expect_problem(with("FP32", "[2,1]", "5"), "data: expected an array", model);
  std::string twice = with("FP32", "[2,1]", "[1,2]");
  twice.insert(twice.size() - 2, "," + twice.substr(11, twice.size() - 13));
  expect_problem(twice, "given twice", model);
  std::string output = with("FP32", "[2,1]", "[1,2]");
  output.insert(1, R"("outputs":[{"name":"q"}],)");
  expect_problem(output, "unexpected output \"q\"", model);
}

TEST(Request, RejectsSizesThatLie) {
  const ModelSignature model = one_input(c10::kFloat, {-1, -1, -1});
  expect_problem(with("FP32", "[1,1,3]", "[1,2]"), "has 3 elements, but data has 2", model);
  expect_problem(with("FP32", "[1,1,1]", "[1,2]"), "has 1 elements, but data has more", model);
  expect_problem(with("FP32", "[0,1,1]", "[1]"), "has 0 elements, but data has more", model);
  expect_problem(with("FP32", "[1,2,1]", "[[[1,2]]]"), "an array of axis 2 of data has", model);
  expect_problem(with("FP32", "[2,1,1]", "[[[1]],2]"), "nested to different depths", model);
  expect_problem(with("FP32", "[1,1,1]", "[[[[1]]]]"), "got an array", model);
  expect_problem(with("FP32", "[4294967296,4294967296,4294967296]", "[1]"), "too large", model);
  expect_problem(with("FP32", "[0,9223372036854775807,9223372036854775807]", "[]"), "too large", model);
  expect_problem(with("FP32", "[1,1,1000000000000]", "[1]"), "data has fewer", model);
}

TEST(Request, RejectsWrongBatches) {
  const auto body = [](int rows, int other) {
    return R"({"inputs":[{"name":"x","datatype":"FP32","shape":[)" + std::to_string(rows) +
           R"(,2],"data":[]},{"name":"n","datatype":"INT64","shape":[)" + std::to_string(other) + R"(,0],"data":[]}]})";
  };
  expect_problem(body(0, 0), "expected a batch size from 1 to 8, got 0");
  expect_problem(body(9, 9), "expected a batch size from 1 to 8, got 9");
}

TEST(Request, ReadsBinaryTensors) {
  const std::vector<float> data{1.5F, -2, 3, 4};
  std::string body = R"({"inputs":[{"name":"x","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}}]})";
  const size_t header = body.size();
  body.append(reinterpret_cast<const char*>(data.data()), 16);
  EXPECT_EQ(values<float>(parse_infer_request(body, header, one_input(c10::kFloat)).inputs.at(0)), data);
  const ModelSignature model = one_input(c10::kFloat);
  EXPECT_NE(request_problem(body.substr(0, body.size() - 1), header, model).find("15 bytes"), std::string::npos);
  EXPECT_NE(request_problem(body + "x", header, model).find("1 bytes more"), std::string::npos);
  EXPECT_NE(request_problem(body, body.size() + 1, model).find("Inference-Header-Content-Length"), std::string::npos);
  EXPECT_NE(request_problem(body, header - 1, model), "");
  EXPECT_NE(request_problem(body, std::numeric_limits<size_t>::max(), model), "");
  EXPECT_NE(request_problem(body, std::nullopt, model), "");
}

TEST(Request, RejectsWrongBinarySizes) {
  const auto body = [](const std::string& shape, const std::string& size) {
    return R"({"inputs":[{"name":"x","datatype":"FP32","shape":)" + shape + R"(,"parameters":{"binary_data_size":)" +
           size + "}}]}";
  };
  for (const auto& [shape, size] : {std::pair{"[4]", "12"},
                                    {"[4]", "20"},
                                    {"[4]", "-16"},
                                    {"[4]", "16.5"},
                                    {"[4]", "18446744073709551615"},
                                    {"[4611686018427387904]", "0"},
                                    {"[4611686018427387908]", "16"},
                                    {"[9223372036854775807]", "16"}}) {
    const std::string header = body(shape, size);
    EXPECT_NE(request_problem(header + std::string(16, 'x'), header.size(), one_input(c10::kFloat)), "") << header;
  }
  std::string both = body("[4]", "16");
  both.insert(both.size() - 3, R"(,"data":[1,2,3,4])");
  EXPECT_NE(request_problem(both + std::string(16, 'x'), both.size(), one_input(c10::kFloat)), "");
  const std::string boolean =
      R"({"inputs":[{"name":"x","datatype":"BOOL","shape":[2],"parameters":{"binary_data_size":2}}]})";
  EXPECT_EQ(request_problem(boolean + std::string("\1\0", 2), boolean.size(), one_input(c10::kBool)), "");
  EXPECT_NE(request_problem(boolean + "\1\2", boolean.size(), one_input(c10::kBool)), "");
}

TEST(Request, ReadsRawRequests) {
  const ModelSignature model = one_input(c10::kInt, {-1, 2});
  const InferRequest request = parse_infer_request(std::string(24, '\0'), 0, model);
  EXPECT_EQ(request.inputs.at(0).sizes(), at::IntArrayRef({3, 2}));
  EXPECT_TRUE(request.outputs.at(0).binary);
  EXPECT_NE(request_problem(std::string(23, '\0'), 0, model), "");
  EXPECT_NE(request_problem(std::string(24, '\0'), 0, two_inputs()), "");
}

TEST(Request, RejectsUnsupportedExtensions) {
  const std::string shared =
      R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"shared_memory_region":"r"}}]})";
  EXPECT_NE(request_problem(shared, std::nullopt, one_input(c10::kFloat), status_unsupported), "");
}

// Every mutation is either a valid request whose tensors have the stated sizes, or a RequestError.
TEST(Request, MutationsAreRejectedOrValid) {
  std::mt19937 random(1);
  const std::string seed = valid;
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string body = seed;
    for (int change = 0; change < 1 + static_cast<int>(random() % 3); ++change) {
      const size_t at = random() % body.size();
      switch (random() % 4) {
        case 0:
          body[at] = static_cast<char>(random());
          break;
        case 1:
          body.erase(at, random() % 8);
          break;
        case 2:
          body.insert(at, body.substr(random() % body.size(), random() % 16));
          break;
        default:
          body[at] = "0123456789-.eE[]{},:\""[random() % 21];
      }
      if (body.empty()) body = "{";
    }
    try {
      const std::optional<size_t> header =
          random() % 4 == 0 ? std::optional<size_t>(random() % (body.size() + 2)) : std::nullopt;
      const InferRequest request = parse_infer_request(body, header, two_inputs());
      ASSERT_EQ(request.inputs.size(), 2u);
      for (const at::Tensor& input : request.inputs) ASSERT_EQ(input.size(0), request.rows);
      ++accepted;
    } catch (const RequestError&) {
    }
  }
  EXPECT_GT(accepted, 100);  // otherwise, the mutations would test only the JSON parser
}

TEST(Response, WritesJson) {
  const ModelSignature model = one_input(c10::kFloat);
  const at::Tensor y = at::tensor({0.1F, -2.5F, 1e20F, std::numeric_limits<float>::infinity()});
  const std::vector<RequestedOutput> wanted{{.index = 0}};
  const InferResponse response = format_infer_response(model, "a\"b", wanted, {&y, 1});
  EXPECT_FALSE(response.header_bytes);
  EXPECT_EQ(response.body,
            R"({"id":"a\"b","model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"FP32",)"
            R"("shape":[4],"data":[0.1,-2.5,1e+20,Infinity]}]})");
}

TEST(Response, WritesNumbersThatReadBackExactly) {
  const ModelSignature model = one_input(c10::kFloat);
  std::mt19937 random(2);
  std::vector<float> data;
  while (data.size() < 1000) {
    const auto bits = static_cast<uint32_t>(random());
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (std::isfinite(value)) data.push_back(value);
  }
  const at::Tensor y = at::tensor(data);
  const std::vector<RequestedOutput> wanted{{.index = 0}};
  std::string text = format_infer_response(model, "", wanted, {&y, 1}).body;
  const std::string values_text = text.substr(text.find("\"data\":") + 7);
  const std::string body = with("FP32", "[1000]", values_text.substr(0, values_text.size() - 3));
  EXPECT_TRUE(at::equal(parse_infer_request(body, std::nullopt, model).inputs.at(0), y));
}

TEST(Response, WritesBinaryTensorsAfterTheJsonText) {
  ModelSignature model = two_inputs();
  const std::vector<at::Tensor> outputs{at::tensor({1.F, 2.F, 3.F, 4.F}).view({2, 2}), at::ones({2, 1}, at::kHalf)};
  const std::vector<RequestedOutput> wanted{{.index = 1, .binary = true}, {.index = 0, .binary = true}};
  const InferResponse response = format_infer_response(model, "", wanted, outputs);
  ASSERT_TRUE(response.header_bytes);
  const json header = json::parse(response.body.substr(0, *response.header_bytes));
  EXPECT_EQ(header["outputs"][0]["name"], "z");
  EXPECT_EQ(header["outputs"][0]["parameters"]["binary_data_size"], 4);
  EXPECT_EQ(header["outputs"][1]["parameters"]["binary_data_size"], 16);
  const std::string data = response.body.substr(*response.header_bytes);
  ASSERT_EQ(data.size(), 20u);
  EXPECT_EQ(std::memcmp(data.data(), outputs[1].const_data_ptr(), 4), 0);
  EXPECT_EQ(std::memcmp(data.data() + 4, outputs[0].const_data_ptr(), 16), 0);
}

TEST(Response, WritesClasses) {
  ModelSignature model = two_inputs();
  model.outputs[0].labels = {"cat", "dog"};
  const std::vector<at::Tensor> outputs{at::tensor({0.25F, 0.75F, 2.F, 1.F}).view({2, 2}), at::ones({2, 1}, at::kHalf)};
  const std::vector<RequestedOutput> wanted{{.index = 0, .classes = 5}};
  const json body = json::parse(format_infer_response(model, "", wanted, outputs).body);
  EXPECT_EQ(body["outputs"][0]["datatype"], "BYTES");
  EXPECT_EQ(body["outputs"][0]["shape"], json({2, 2}));
  EXPECT_EQ(body["outputs"][0]["data"], json({"0.750000:1:dog", "0.250000:0:cat", "2.000000:0:cat", "1.000000:1:dog"}));
}

TEST(Response, RejectsWhatTheSignatureDoesNotState) {
  const ModelSignature model = one_input(c10::kFloat);
  const std::vector<RequestedOutput> wanted{{.index = 0}};
  const auto status = [&](const std::vector<at::Tensor>& outputs, const ModelSignature& of) {
    try {
      format_infer_response(of, "", wanted, outputs);
    } catch (const RequestError& error) {
      return error.status();
    }
    return 0;
  };
  EXPECT_EQ(status({at::ones({2})}, model), 0);
  EXPECT_EQ(status({at::ones({2}, at::kLong)}, model), status_internal);
  EXPECT_EQ(status({at::ones({2, 2})}, model), status_internal);
  EXPECT_EQ(status({at::Tensor()}, model), status_internal);
  EXPECT_EQ(status({}, model), status_internal);
  EXPECT_EQ(status({at::ones({2}, at::kHalf)}, one_input(c10::kHalf)), status_bad_request);
}

TEST(Response, WritesTransposedTensorsInRowMajorOrder) {
  ModelSignature model = one_input(c10::kFloat);
  model.outputs[0].dims = {2, 2};
  const at::Tensor y = at::tensor({1.F, 2.F, 3.F, 4.F}).view({2, 2}).t();
  const std::vector<RequestedOutput> wanted{{.index = 0}};
  EXPECT_EQ(json::parse(format_infer_response(model, "", wanted, {&y, 1}).body)["outputs"][0]["data"],
            json({1, 3, 2, 4}));
}

TEST(ErrorJson, EscapesText) {
  EXPECT_EQ(json::parse(error_json("a \"b\"\n\xff"))["error"], "a \"b\"\n\xEF\xBF\xBD");
}

}  // namespace bellows::serve
