// Conversion of gRPC messages to tensors and back, without sockets.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "bellows/serve/grpc/infer_message_impl.h"
#include "bellows/serve/grpc/response_buffer_impl.h"
#include "bellows/serve/tensor_types.h"
#include "tests/serve/requests.h"
#include "tests/serve/shared_object.h"

namespace bellows::serve {

namespace {

using inference::ModelInferRequest;
using testing::HasSubstr;

ModelSignature two_inputs() {
  return {
      .name = "m",
      .version = "3",
      .max_batch_size = 4,
      .inputs = {{.name = "a", .dtype = c10::kFloat, .dims = {2}}, {.name = "b", .dtype = c10::kLong, .dims = {-1}}},
      .outputs = {{.name = "y", .dtype = c10::kFloat, .dims = {2}}, {.name = "z", .dtype = c10::kLong, .dims = {-1}}}};
}

ModelInferRequest::InferInputTensor* add_input(ModelInferRequest& request, const std::string& name,
                                               const std::string& datatype, const std::vector<int64_t>& shape) {
  auto* input = request.add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->mutable_shape()->Add(shape.begin(), shape.end());
  return input;
}

template <class Value>
std::string bytes_of(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

/// A valid request for two_inputs().
ModelInferRequest good_request() {
  ModelInferRequest request;
  request.set_id("r1");
  add_input(request, "b", "INT64", {2, 1});
  add_input(request, "a", "FP32", {2, 2});
  request.add_raw_input_contents(bytes_of<int64_t>({7, 8}));
  request.add_raw_input_contents(bytes_of<float>({1, 2, 3, 4}));
  return request;
}

InferRequest read(const ModelInferRequest& request, const ModelSignature& model, const SharedMemory* memory = nullptr) {
  auto message = std::make_shared<InferMessage>();
  **message = request;
  return read_infer_message(message, model, memory);
}

std::string read_error(int status, const ModelInferRequest& request, const ModelSignature& model,
                       const SharedMemory* memory = nullptr) {
  return error_of(status, [&] { read(request, model, memory); });
}

/// Changes a valid request.
std::string error_after(const std::function<void(ModelInferRequest&)>& change, int status = 400) {
  ModelInferRequest request = good_request();
  change(request);
  return read_error(status, request, two_inputs());
}

template <class Message>
Message message_of(grpc::ByteBuffer bytes) {
  Message message;
  grpc::ProtoBufferReader reader(&bytes);
  EXPECT_TRUE(message.ParseFromZeroCopyStream(&reader));
  return message;
}

}  // namespace

TEST(GrpcRequest, ReadsRawContents) {
  const InferRequest request = read(good_request(), two_inputs());
  EXPECT_EQ(request.id, "r1");
  EXPECT_EQ(request.rows, 2);
  EXPECT_TRUE(at::equal(request.inputs[0], at::tensor({1.F, 2.F, 3.F, 4.F}).view({2, 2})));
  EXPECT_TRUE(at::equal(request.inputs[1], at::tensor({7, 8}, at::kLong).view({2, 1})));
  ASSERT_EQ(request.outputs.size(), 2u);
  EXPECT_TRUE(request.outputs[1].binary);
}

TEST(GrpcRequest, DoesNotCopyLargeRawContents) {
  auto message = std::make_shared<InferMessage>();
  add_input(**message, "x", "FP32", {1000});
  (*message)->add_raw_input_contents(std::string(4000, '\0'));
  const void* data = (*message)->raw_input_contents(0).data();
  const ModelSignature model = one_input(c10::kFloat);
  const InferRequest request = read_infer_message(message, model, nullptr);
  EXPECT_EQ(request.inputs[0].const_data_ptr(), data);
  const std::weak_ptr<InferMessage> alive = message;
  message.reset();
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(request.inputs[0].sum().item<float>(), 0);
}

TEST(GrpcRequest, ReadsTypedContents) {
  const auto read_contents = [](const char* datatype, c10::ScalarType dtype, const auto& fill) {
    ModelInferRequest request;
    fill(*add_input(request, "x", datatype, {2})->mutable_contents());
    return read(request, one_input(dtype)).inputs.at(0).to(at::kDouble);
  };
  const at::Tensor expected = at::tensor({1., 0.}, at::kDouble);
  using Contents = inference::InferTensorContents;
  const auto fill = [&](auto add) {
    return [add](Contents& contents) {
      (contents.*add)(1);
      (contents.*add)(0);
    };
  };
  EXPECT_TRUE(at::equal(read_contents("BOOL", at::kBool, fill(&Contents::add_bool_contents)), expected));
  EXPECT_TRUE(at::equal(read_contents("INT8", at::kChar, fill(&Contents::add_int_contents)), expected));
  EXPECT_TRUE(at::equal(read_contents("INT16", at::kShort, fill(&Contents::add_int_contents)), expected));
  EXPECT_TRUE(at::equal(read_contents("INT32", at::kInt, fill(&Contents::add_int_contents)), expected));
  EXPECT_TRUE(at::equal(read_contents("INT64", at::kLong, fill(&Contents::add_int64_contents)), expected));
  EXPECT_TRUE(at::equal(read_contents("UINT8", at::kByte, fill(&Contents::add_uint_contents)), expected));
  EXPECT_TRUE(at::equal(read_contents("UINT16", at::kUInt16, fill(&Contents::add_uint_contents)), expected));
  EXPECT_TRUE(at::equal(read_contents("UINT32", at::kUInt32, fill(&Contents::add_uint_contents)), expected));
  EXPECT_TRUE(at::equal(read_contents("UINT64", at::kUInt64, fill(&Contents::add_uint64_contents)), expected));
  EXPECT_TRUE(at::equal(read_contents("FP32", at::kFloat, fill(&Contents::add_fp32_contents)), expected));
  EXPECT_TRUE(at::equal(read_contents("FP64", at::kDouble, fill(&Contents::add_fp64_contents)), expected));
}

TEST(GrpcRequest, RejectsWrongTypedContents) {
  ModelInferRequest request;
  auto* input = add_input(request, "x", "INT8", {1});
  EXPECT_THAT(read_error(400, request, one_input(at::kChar)), HasSubstr("contents.int_contents has 0"));
  input->mutable_contents()->add_int_contents(128);
  EXPECT_THAT(read_error(400, request, one_input(at::kChar)), HasSubstr("128 is out of the range of INT8"));
  input->mutable_contents()->set_int_contents(0, -129);
  EXPECT_THAT(read_error(400, request, one_input(at::kChar)), HasSubstr("out of the range"));
  input->set_datatype("FP16");
  EXPECT_THAT(read_error(400, request, one_input(at::kHalf)), HasSubstr("raw_input_contents"));
  input->set_datatype("FP32");
  input->mutable_contents()->add_fp64_contents(1);
  EXPECT_THAT(read_error(400, request, one_input(at::kFloat)), HasSubstr("contents.fp32_contents has 0"));
  input->set_shape(0, int64_t{1} << 60);
  EXPECT_THAT(read_error(400, request, one_input(at::kFloat)), HasSubstr("elements"));
}

TEST(GrpcRequest, RejectsWrongInputs) {
  EXPECT_THAT(error_after([](auto& r) { r.mutable_inputs(0)->set_name("q"); }), HasSubstr("unexpected input \"q\""));
  EXPECT_THAT(error_after([](auto& r) { r.mutable_inputs(0)->set_name("a"); }), HasSubstr("datatype"));
  EXPECT_THAT(error_after([](auto& r) {
                *r.mutable_inputs(0) = r.inputs(1);
                *r.mutable_raw_input_contents(0) = r.raw_input_contents(1);
              }),
              HasSubstr("given twice"));
  EXPECT_THAT(error_after([](auto& r) { r.mutable_inputs(0)->set_datatype("INT32"); }),
              HasSubstr("expected the datatype"));
  EXPECT_THAT(error_after([](auto& r) { r.mutable_inputs(0)->set_datatype(""); }), HasSubstr("expected the datatype"));
  EXPECT_THAT(error_after([](auto& r) {
                r.mutable_inputs()->RemoveLast();
                r.mutable_raw_input_contents()->RemoveLast();
              }),
              HasSubstr("missing input \"a\""));
  EXPECT_THAT(error_after([](auto& r) { r.Clear(); }), HasSubstr("missing input"));
}

TEST(GrpcRequest, RejectsWrongShapes) {
  const auto with_shape = [](const std::vector<int64_t>& shape) {
    return error_after([&](ModelInferRequest& r) {
      r.mutable_inputs(0)->clear_shape();
      r.mutable_inputs(0)->mutable_shape()->Add(shape.begin(), shape.end());
    });
  };
  constexpr int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(with_shape({}), HasSubstr("unexpected shape"));
  EXPECT_THAT(with_shape({2}), HasSubstr("unexpected shape"));
  EXPECT_THAT(with_shape({2, 1, 1}), HasSubstr("unexpected shape"));
  EXPECT_THAT(with_shape({-1, 1}), HasSubstr("at least 0"));
  EXPECT_THAT(with_shape({2, -1}), HasSubstr("at least 0"));
  EXPECT_THAT(with_shape({0, 1}), HasSubstr("batch size from 1 to 4"));
  EXPECT_THAT(with_shape({5, 1}), HasSubstr("batch size from 1 to 4"));
  EXPECT_THAT(with_shape({2, huge}), HasSubstr("too large"));
  EXPECT_THAT(with_shape({2, huge / 2}), HasSubstr("needs"));
  EXPECT_THAT(with_shape(std::vector<int64_t>(65, 1)), HasSubstr("at most 64 axes"));
  EXPECT_THAT(error_after([](auto& r) {
                r.mutable_inputs(0)->set_shape(0, 1);
                r.set_raw_input_contents(0, bytes_of<int64_t>({7}));
              }),
              HasSubstr("the batch size is 2, but that of an earlier input is 1"));
}

TEST(GrpcRequest, RejectsSizesThatLie) {
  EXPECT_THAT(error_after([](auto& r) { r.mutable_raw_input_contents(0)->pop_back(); }), HasSubstr("needs 2 elements"));
  EXPECT_THAT(error_after([](auto& r) { r.mutable_raw_input_contents(0)->append(8, 'x'); }),
              HasSubstr("needs 2 elements"));
  EXPECT_THAT(error_after([](auto& r) { r.mutable_raw_input_contents()->RemoveLast(); }), HasSubstr("only 1 elements"));
  EXPECT_THAT(error_after([](auto& r) { r.add_raw_input_contents("x"); }), HasSubstr("has 3 elements, but 2 inputs"));
  EXPECT_THAT(error_after([](auto& r) { r.clear_raw_input_contents(); }), HasSubstr("contents.int64_contents has 0"));
  EXPECT_THAT(error_after([](auto& r) { r.mutable_inputs(0)->mutable_contents(); }), HasSubstr("together with"));
}

TEST(GrpcRequest, RejectsInvalidBooleans) {
  ModelInferRequest request;
  add_input(request, "x", "BOOL", {2});
  request.add_raw_input_contents(std::string("\x01\x02", 2));
  EXPECT_THAT(read_error(400, request, one_input(at::kBool)), HasSubstr("0 or 1"));
}

TEST(GrpcRequest, ReadsParameters) {
  ModelInferRequest request = good_request();
  (*request.mutable_parameters())["priority"].set_uint64_param(2);
  (*request.mutable_parameters())["timeout"].set_int64_param(500);
  (*request.mutable_parameters())["sequence_id"].set_int64_param(0);
  (*request.mutable_parameters())["own"].set_double_param(1);
  auto* output = request.add_outputs();
  output->set_name("z");
  (*output->mutable_parameters())["classification"].set_int64_param(3);
  const InferRequest read_request = read(request, two_inputs());
  EXPECT_EQ(read_request.priority, 2u);
  EXPECT_EQ(read_request.timeout_us, 500u);
  ASSERT_EQ(read_request.outputs.size(), 1u);
  EXPECT_EQ(read_request.outputs[0].index, 1u);
  EXPECT_EQ(read_request.outputs[0].classes, 3);
}

TEST(GrpcRequest, ReadsSequences) {
  ModelInferRequest request = good_request();
  (*request.mutable_parameters())["sequence_id"].set_uint64_param(7);
  (*request.mutable_parameters())["sequence_start"].set_bool_param(true);
  const SequenceFlags flags = read(request, two_inputs()).sequence;
  EXPECT_EQ(flags.id, 7u);
  EXPECT_TRUE(flags.start);
  EXPECT_FALSE(flags.end);
  (*request.mutable_parameters())["sequence_start"].set_int64_param(1);
  EXPECT_THAT(read_error(400, request, two_inputs()), HasSubstr("sequence_start: expected a bool_param"));
}

TEST(GrpcRequest, ReadsTexts) {
  ModelInferRequest request;
  add_input(request, "x", "BYTES", {2});
  request.add_raw_input_contents(std::string("\1\0\0\0a\0\0\0\0", 9));
  EXPECT_THAT(read(request, one_input(bytes_dtype)).bytes.at(0)->values, testing::ElementsAre("a", ""));
  request.set_raw_input_contents(0, "abc");
  EXPECT_THAT(read_error(400, request, one_input(bytes_dtype)), HasSubstr("has only 3 bytes"));
  request.clear_raw_input_contents();
  request.mutable_inputs(0)->mutable_contents()->add_bytes_contents("one");
  EXPECT_THAT(read_error(400, request, one_input(bytes_dtype)), HasSubstr("bytes_contents has 1"));
  request.mutable_inputs(0)->mutable_contents()->add_bytes_contents("two");
  EXPECT_THAT(read(request, one_input(bytes_dtype)).bytes.at(0)->values, testing::ElementsAre("one", "two"));
}

TEST(GrpcRequest, RejectsWrongParameters) {
  const auto with = [](const char* key, const auto& set, int status = 400) {
    return error_after([&](ModelInferRequest& r) { set((*r.mutable_parameters())[key]); }, status);
  };
  EXPECT_THAT(with("priority", [](auto& p) { p.set_int64_param(-1); }), HasSubstr("at least 0"));
  EXPECT_THAT(with("timeout", [](auto& p) { p.set_string_param("1"); }), HasSubstr("parameters: timeout"));
  EXPECT_THAT(with("sequence_id", [](auto& p) { p.set_string_param("s"); }),
              HasSubstr("sequence_id: expected an int64"));
  EXPECT_THAT(error_after([](auto& r) { r.add_outputs()->set_name("q"); }), HasSubstr("unexpected output"));
  EXPECT_THAT(error_after([](auto& r) {
                r.add_outputs()->set_name("z");
                r.add_outputs()->set_name("z");
              }),
              HasSubstr("requested twice"));
  EXPECT_THAT(error_after([](auto& r) {
                auto* output = r.add_outputs();
                output->set_name("z");
                (*output->mutable_parameters())["classification"].set_int64_param(int64_t{1} << 40);
              }),
              HasSubstr("classification"));
}

TEST(GrpcRequest, ReadsSharedMemory) {
  const SharedObject object(64);
  object.write(8, {5, 6});
  SharedMemory memory(1 << 20);
  memory.add("r", object.key(), 0, 64);
  ModelInferRequest request;
  auto* input = add_input(request, "x", "FP32", {2});
  auto& parameters = *input->mutable_parameters();
  parameters["shared_memory_region"].set_string_param("r");
  EXPECT_THAT(read_error(400, request, one_input(at::kFloat), &memory), HasSubstr("shared_memory_byte_size"));
  parameters["shared_memory_byte_size"].set_int64_param(8);
  parameters["shared_memory_offset"].set_int64_param(8);
  const InferRequest good = read(request, one_input(at::kFloat), &memory);
  EXPECT_TRUE(at::equal(good.inputs[0], at::tensor({5.F, 6.F})));
  EXPECT_THAT(read_error(501, request, one_input(at::kFloat)), HasSubstr("not supported"));
  parameters["shared_memory_offset"].set_int64_param(60);
  EXPECT_THAT(read_error(400, request, one_input(at::kFloat), &memory), HasSubstr("do not fit"));
  parameters["shared_memory_offset"].set_uint64_param(std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(read_error(400, request, one_input(at::kFloat), &memory), HasSubstr("do not fit"));
  parameters["shared_memory_region"].set_int64_param(1);
  EXPECT_THAT(read_error(400, request, one_input(at::kFloat), &memory), HasSubstr("string_param"));
}

TEST(GrpcResponse, WritesMessages) {
  const ModelSignature model = two_inputs();
  // Small and large tensors are written in different ways.
  const std::vector<at::Tensor> outputs{at::tensor({1.F, 2.F}).view({1, 2}), at::arange(100'000).view({1, -1})};
  const std::vector<RequestedOutput> wanted{{.index = 1}, {.index = 0}};
  const auto check = [&](const inference::ModelInferResponse& response) {
    EXPECT_EQ(response.model_name(), "m");
    EXPECT_EQ(response.model_version(), "3");
    EXPECT_EQ(response.id(), "r");
    ASSERT_EQ(response.outputs_size(), 2);
    EXPECT_EQ(response.outputs(0).name(), "z");
    EXPECT_EQ(response.outputs(0).datatype(), "INT64");
    EXPECT_THAT(response.outputs(0).shape(), testing::ElementsAre(1, 100'000));
    ASSERT_EQ(response.raw_output_contents_size(), 2);
    ASSERT_EQ(response.raw_output_contents(0).size(), 800'000u);
    EXPECT_EQ(std::memcmp(response.raw_output_contents(0).data(), outputs[1].const_data_ptr(), 800'000), 0);
    EXPECT_EQ(response.raw_output_contents(1), bytes_of<float>({1, 2}));
  };
  check(message_of<inference::ModelInferResponse>(response_buffer(model, "r", wanted, outputs, ResponseKind::unary)));
  const auto stream = message_of<inference::ModelStreamInferResponse>(
      response_buffer(model, "r", wanted, outputs, ResponseKind::stream));
  EXPECT_EQ(stream.error_message(), "");
  check(stream.infer_response());
  EXPECT_TRUE(stream.infer_response().parameters().at("triton_final_response").bool_param());
}

TEST(GrpcResponse, WritesClassesAndSharedMemory) {
  const SharedObject object(64);
  SharedMemory memory(1 << 20);
  memory.add("r", object.key(), 0, 64);
  ModelSignature model = two_inputs();
  model.outputs[0].labels = {"cat", "dog"};
  const std::vector<at::Tensor> outputs{at::tensor({1.F, 2.F}).view({1, 2}), at::ones({1, 3}, at::kLong)};
  const std::vector<RequestedOutput> wanted{{.index = 1, .shared = memory.part("z", "r", 8, 24)},
                                            {.index = 0, .classes = 1}};
  const auto response =
      message_of<inference::ModelInferResponse>(response_buffer(model, "", wanted, outputs, ResponseKind::unary));
  EXPECT_EQ(response.raw_output_contents(0), "");
  EXPECT_EQ(response.outputs(0).parameters().at("shared_memory_region").string_param(), "r");
  EXPECT_EQ(response.outputs(0).parameters().at("shared_memory_byte_size").int64_param(), 24);
  EXPECT_EQ(response.outputs(1).datatype(), "BYTES");
  EXPECT_THAT(response.outputs(1).shape(), testing::ElementsAre(1, 1));
  const std::string text = "2.000000:1:dog";
  EXPECT_EQ(response.raw_output_contents(1), bytes_of<uint32_t>({static_cast<uint32_t>(text.size())}) + text);
}

TEST(GrpcResponse, RejectsWhatTheSignatureDoesNotState) {
  const ModelSignature model = one_input(at::kFloat);
  const std::vector<RequestedOutput> wanted{{.index = 0}};
  for (const at::Tensor& output : {at::ones({2}, at::kLong), at::ones({2, 2}), at::Tensor()})
    EXPECT_THROW(response_buffer(model, "", wanted, {&output, 1}, ResponseKind::unary), RequestError);
  EXPECT_THROW(response_buffer(model, "", wanted, {}, ResponseKind::unary), RequestError);
}

}  // namespace bellows::serve
