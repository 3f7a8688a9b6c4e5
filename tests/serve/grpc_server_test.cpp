// The gRPC service over sockets.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "bellows/serve/grpc/inference.grpc.pb.h"
#include "bellows/serve/server.h"
#include "bellows/system/file.h"
#include "tests/serve/raw_client.h"
#include "tests/serve/shared_object.h"
#include "tests/serve/test_models.h"

namespace bellows::serve {

namespace {

using grpc::StatusCode;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using nlohmann::json;
using std::chrono::milliseconds;
using testing::HasSubstr;

/// A server with the models of test_models.h, and a client.
class GrpcServing : public testing::Test {
 protected:
  void SetUp() override { start(); }

  void start(const std::function<void(ServerOptions&)>& change = {}) {
    stub_.reset();
    server_.reset();
    write_test_models(folder_);
    folder_.write("strict/1/model.test", "strict");
    folder_.write("damaged/1/model.test", "?");
    folder_.write("bytes/1/model.test", "types UINT8");
    ServerOptions options{.repository = folder_.path()};
    options.http.port = 0;
    options.grpc = GrpcOptions{.port = 0};
    if (change) change(options);
    server_ = std::make_unique<Server>(options, test_loader());
    server_->wait_until_loaded();
    stub_ = connect();
  }

  std::unique_ptr<inference::GRPCInferenceService::Stub> connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    arguments.SetMaxReceiveMessageSize(-1);
    return inference::GRPCInferenceService::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(server_->grpc_port()), grpc::InsecureChannelCredentials(), arguments));
  }

  grpc::Status infer(const ModelInferRequest& request, ModelInferResponse* response = nullptr) {
    grpc::ClientContext context;
    ModelInferResponse ignored;
    return stub_->ModelInfer(&context, request, response ? response : &ignored);
  }

  json stats(const std::string& model) {
    RawClient client(server_->port());
    client.send(get("/v2/models/" + model + "/stats"));
    return json::parse(client.receive().body)["model_stats"][0];
  }

  /// Returns whether one request waits in the queue of a model.
  bool waits(const std::string& model) {
    RawClient client(server_->port());
    client.send(get("/metrics"));
    return client.receive().body.find("nv_inference_pending_request_count{model=\"" + model +
                                      "\",version=\"1\"} 1\n") != std::string::npos;
  }

  TestFolder folder_{};
  std::unique_ptr<Server> server_{};
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_{};
};

ModelInferRequest request_for(const std::string& model, float value) {
  ModelInferRequest request;
  request.set_model_name(model);
  request.set_id("id " + std::to_string(value));
  auto* input = request.add_inputs();
  input->set_name("x");
  input->set_datatype("FP32");
  input->add_shape(1);
  input->add_shape(4);
  const std::array<float, 4> values{value, value, value, value};
  request.add_raw_input_contents(std::string(reinterpret_cast<const char*>(values.data()), sizeof values));
  return request;
}

float value_of(const ModelInferResponse& response) {
  float value = 0;
  if (response.raw_output_contents_size() == 1 && response.raw_output_contents(0).size() == 16)
    std::memcpy(&value, response.raw_output_contents(0).data(), sizeof value);
  return value;
}

void set_deadline(grpc::ClientContext& context, milliseconds time) {
  context.set_deadline(std::chrono::system_clock::now() + time);
}

/// Calls a simple method.
template <class Response, class Request, class Method>
grpc::Status call(inference::GRPCInferenceService::Stub& stub, Method method, const Request& request,
                  Response& response) {
  grpc::ClientContext context;
  return (stub.*method)(&context, request, &response);
}

}  // namespace

using Stub = inference::GRPCInferenceService::Stub;

TEST_F(GrpcServing, AnswersHealthAndMetadata) {
  inference::ServerLiveResponse live;
  EXPECT_TRUE(call(*stub_, &Stub::ServerLive, inference::ServerLiveRequest(), live).ok() && live.live());
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(call(*stub_, &Stub::ServerReady, inference::ServerReadyRequest(), ready).ok() && ready.ready());
  inference::ServerMetadataResponse server;
  EXPECT_TRUE(call(*stub_, &Stub::ServerMetadata, inference::ServerMetadataRequest(), server).ok());
  EXPECT_EQ(server.name(), "bellows");
  EXPECT_THAT(server.extensions(), testing::Contains("system_shared_memory"));
  const auto model_ready = [&](const std::string& name, const std::string& version) {
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    inference::ModelReadyResponse response;
    EXPECT_TRUE(call(*stub_, &Stub::ModelReady, request, response).ok());
    return response.ready();
  };
  EXPECT_TRUE(model_ready("sum", "") && model_ready("sum", "1"));
  EXPECT_FALSE(model_ready("sum", "2") || model_ready("damaged", "") || model_ready("a/b %", ""));
  inference::ModelMetadataRequest metadata_request;
  inference::ModelMetadataResponse metadata;
  EXPECT_EQ(call(*stub_, &Stub::ModelMetadata, metadata_request, metadata).error_code(), StatusCode::INVALID_ARGUMENT);
  metadata_request.set_name("none");
  EXPECT_EQ(call(*stub_, &Stub::ModelMetadata, metadata_request, metadata).error_code(), StatusCode::NOT_FOUND);
  metadata_request.set_name("sum");
  EXPECT_TRUE(call(*stub_, &Stub::ModelMetadata, metadata_request, metadata).ok());
  EXPECT_EQ(metadata.inputs(0).name(), "a");
  EXPECT_THAT(metadata.inputs(0).shape(), testing::ElementsAre(-1, 2));
  inference::ModelConfigRequest config_request;
  config_request.set_name("sum");
  inference::ModelConfigResponse config;
  EXPECT_TRUE(call(*stub_, &Stub::ModelConfig, config_request, config).ok());
  EXPECT_EQ(config.config().max_batch_size(), 8);
  EXPECT_EQ(config.config().dynamic_batching().max_queue_delay_microseconds(), 500u);
  EXPECT_EQ(config.config().input(0).data_type(), config::TYPE_INT64);
}

TEST_F(GrpcServing, AnswersInference) {
  ModelInferResponse response;
  const grpc::Status status = infer(request_for("identity", 1.5F), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.model_name(), "identity");
  EXPECT_EQ(response.model_version(), "1");
  EXPECT_EQ(response.id(), "id 1.500000");
  EXPECT_EQ(response.outputs(0).name(), "y");
  EXPECT_EQ(value_of(response), 1.5F);
  EXPECT_EQ(stats("identity")["inference_count"], 1);
  inference::ModelStatisticsRequest statistics_request;
  inference::ModelStatisticsResponse statistics;
  EXPECT_TRUE(call(*stub_, &Stub::ModelStatistics, statistics_request, statistics).ok());
  EXPECT_GE(statistics.model_stats_size(), 4);
  statistics_request.set_name("identity");
  statistics.Clear();
  EXPECT_TRUE(call(*stub_, &Stub::ModelStatistics, statistics_request, statistics).ok());
  ASSERT_EQ(statistics.model_stats_size(), 1);
  EXPECT_EQ(statistics.model_stats(0).inference_stats().success().count(), 1u);
  EXPECT_GT(statistics.model_stats(0).inference_stats().success().ns(), 0u);
}

TEST_F(GrpcServing, SendsLargeTensors) {
  ModelInferRequest request;
  request.set_model_name("bytes");
  auto* input = request.add_inputs();
  input->set_name("x");
  input->set_datatype("UINT8");
  input->add_shape(5);
  input->add_shape(1'000'003);
  std::string bytes(5 * 1'000'003, '\0');
  std::mt19937 random(1);
  for (char& byte : bytes) byte = static_cast<char>(random());
  request.add_raw_input_contents(bytes);
  for (int i = 0; i < 3; ++i) {
    ModelInferResponse response;
    ASSERT_TRUE(infer(request, &response).ok());
    EXPECT_TRUE(response.raw_output_contents(0) == bytes);
  }
}

TEST_F(GrpcServing, ReportsErrorsWithTheStatus) {
  const auto expect = [&](const ModelInferRequest& request, StatusCode code, const std::string& part) {
    const grpc::Status status = infer(request);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  };
  expect(request_for("none", 1), StatusCode::NOT_FOUND, "unknown model");
  expect(request_for("", 1), StatusCode::NOT_FOUND, "unknown model");
  expect(request_for("damaged", 1), StatusCode::INVALID_ARGUMENT, "damaged model file");
  expect(request_for("strict", -1), StatusCode::INTERNAL, "negative value");
  ModelInferRequest version = request_for("identity", 1);
  version.set_model_version("9");
  expect(version, StatusCode::NOT_FOUND, "no version");
  ModelInferRequest sequence = request_for("identity", 1);
  (*sequence.mutable_parameters())["sequence_id"].set_int64_param(3);
  expect(sequence, StatusCode::UNIMPLEMENTED, "sequences");
  ModelInferRequest shape = request_for("identity", 1);
  shape.mutable_inputs(0)->set_shape(1, -4);
  expect(shape, StatusCode::INVALID_ARGUMENT, "at least 0");
  EXPECT_EQ(stats("identity")["inference_stats"]["fail"]["count"], 2);
  EXPECT_TRUE(infer(request_for("strict", 1)).ok());
}

TEST_F(GrpcServing, RejectsMalformedMessages) {
  grpc::GenericStub stub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->grpc_port()), grpc::InsecureChannelCredentials()));
  const auto send = [&](const std::string& method, const std::string& bytes) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const auto reader = stub.PrepareUnaryCall(&context, "/inference.GRPCInferenceService/" + method,
                                              grpc::ByteBuffer(&slice, 1), &queue);
    reader->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    reader->Finish(&response, &status, &queue);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status.error_code();
  };
  const std::string good = request_for("identity", 1).SerializeAsString();
  EXPECT_EQ(send("ModelInfer", good), StatusCode::OK);
  EXPECT_EQ(send("ModelInfer", "\xff\xff\xff"), StatusCode::INVALID_ARGUMENT);
  std::mt19937 random(2);
  for (int i = 0; i < 500; ++i) {
    std::string bytes = good;
    for (int changes = 0; changes < 1 + i % 4; ++changes) bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(bytes.size() - random() % 3);
    send("ModelInfer", bytes);
  }
  send("ModelReady", "\xff\xff\xff");
  EXPECT_EQ(send("CudaSharedMemoryStatus", ""), StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(infer(request_for("identity", 1)).ok());
}

TEST_F(GrpcServing, LimitsMessages) {
  start([](ServerOptions& options) { options.grpc->max_message_bytes = 1000; });
  ModelInferRequest request = request_for("identity", 1);
  request.set_id(std::string(1000, 'x'));
  EXPECT_EQ(infer(request).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  grpc::ClientContext compressed;
  compressed.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  ModelInferResponse response;
  request.set_id(std::string(900, 'x'));
  EXPECT_EQ(stub_->ModelInfer(&compressed, request, &response).error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(infer(request).ok());
}

TEST_F(GrpcServing, ControlsModels) {
  inference::RepositoryIndexRequest index_request;
  inference::RepositoryIndexResponse index;
  EXPECT_TRUE(call(*stub_, &Stub::RepositoryIndex, index_request, index).ok());
  EXPECT_EQ(index.models_size(), 6);
  index_request.set_ready(true);
  index.Clear();
  EXPECT_TRUE(call(*stub_, &Stub::RepositoryIndex, index_request, index).ok());
  EXPECT_EQ(index.models_size(), 5);
  inference::RepositoryModelUnloadRequest unload;
  inference::RepositoryModelUnloadResponse unloaded;
  unload.set_model_name("identity");
  (*unload.mutable_parameters())["unload_dependents"].set_bool_param(false);
  EXPECT_TRUE(call(*stub_, &Stub::RepositoryModelUnload, unload, unloaded).ok());
  EXPECT_EQ(infer(request_for("identity", 1)).error_code(), StatusCode::INVALID_ARGUMENT);
  inference::RepositoryModelLoadRequest load;
  inference::RepositoryModelLoadResponse loaded;
  load.set_model_name("identity");
  EXPECT_TRUE(call(*stub_, &Stub::RepositoryModelLoad, load, loaded).ok());
  EXPECT_TRUE(infer(request_for("identity", 1)).ok());
  (*load.mutable_parameters())["config"].set_string_param("{}");
  EXPECT_EQ(call(*stub_, &Stub::RepositoryModelLoad, load, loaded).error_code(), StatusCode::UNIMPLEMENTED);
  load.Clear();
  load.set_model_name("../x");
  EXPECT_EQ(call(*stub_, &Stub::RepositoryModelLoad, load, loaded).error_code(), StatusCode::NOT_FOUND);
}

TEST_F(GrpcServing, UsesSharedMemory) {
  const SharedObject object(64);
  object.write(0, {1, 2, 3, 4});
  inference::SystemSharedMemoryRegisterRequest region;
  inference::SystemSharedMemoryRegisterResponse registered;
  EXPECT_EQ(call(*stub_, &Stub::SystemSharedMemoryRegister, region, registered).error_code(),
            StatusCode::INVALID_ARGUMENT);
  region.set_name("a region/é");
  region.set_key(object.key());
  region.set_byte_size(64);
  EXPECT_TRUE(call(*stub_, &Stub::SystemSharedMemoryRegister, region, registered).ok());
  EXPECT_EQ(call(*stub_, &Stub::SystemSharedMemoryRegister, region, registered).error_code(),
            StatusCode::ALREADY_EXISTS);
  inference::SystemSharedMemoryStatusRequest status_request;
  inference::SystemSharedMemoryStatusResponse status;
  EXPECT_TRUE(call(*stub_, &Stub::SystemSharedMemoryStatus, status_request, status).ok());
  EXPECT_EQ(status.regions().at("a region/é").byte_size(), 64u);
  ModelInferRequest request = request_for("identity", 0);
  request.clear_raw_input_contents();
  const auto use = [](auto& parameters, int64_t offset) {
    parameters["shared_memory_region"].set_string_param("a region/é");
    parameters["shared_memory_offset"].set_int64_param(offset);
    parameters["shared_memory_byte_size"].set_int64_param(16);
  };
  use(*request.mutable_inputs(0)->mutable_parameters(), 0);
  auto* output = request.add_outputs();
  output->set_name("y");
  use(*output->mutable_parameters(), 32);
  ModelInferResponse response;
  const grpc::Status good = infer(request, &response);
  EXPECT_TRUE(good.ok()) << good.error_message();
  EXPECT_EQ(response.raw_output_contents(0), "");
  EXPECT_EQ(object.read(32, 4), (std::vector<float>{1, 2, 3, 4}));
  object.resize(8);
  EXPECT_EQ(infer(request).error_code(), StatusCode::INVALID_ARGUMENT);
  inference::SystemSharedMemoryUnregisterRequest remove;
  inference::SystemSharedMemoryUnregisterResponse removed;
  EXPECT_TRUE(call(*stub_, &Stub::SystemSharedMemoryUnregister, remove, removed).ok());
  status_request.set_name("a region/é");
  EXPECT_EQ(call(*stub_, &Stub::SystemSharedMemoryStatus, status_request, status).error_code(), StatusCode::NOT_FOUND);
}

TEST_F(GrpcServing, StreamsResponsesInOrder) {
  grpc::ClientContext context;
  const auto stream = stub_->ModelStreamInfer(&context);
  constexpr int count = 300;  // more than may wait for their answers
  std::thread writer([&] {
    for (int i = 0; i < count; ++i) {
      // Some requests fail: their model does not exist.
      stream->Write(request_for(i % 7 == 3 ? "none" : "identity", static_cast<float>(i)));
    }
    stream->WritesDone();
  });
  for (int i = 0; i < count; ++i) {
    inference::ModelStreamInferResponse response;
    ASSERT_TRUE(stream->Read(&response)) << i;
    EXPECT_EQ(response.infer_response().id(), "id " + std::to_string(static_cast<float>(i)));
    if (i % 7 == 3)
      EXPECT_THAT(response.error_message(), HasSubstr("unknown model"));
    else
      EXPECT_EQ(value_of(response.infer_response()), static_cast<float>(i));
  }
  inference::ModelStreamInferResponse none;
  EXPECT_FALSE(stream->Read(&none));
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(GrpcServing, CancelsRequestsInTheQueue) {
  const ClosedGate closed;
  auto first = std::async(std::launch::async, [&] { return infer(request_for("gated", 1)); });
  gate().wait_for_arrivals(1);
  {
    grpc::ClientContext late;
    set_deadline(late, milliseconds(50));
    ModelInferResponse response;
    EXPECT_EQ(stub_->ModelInfer(&late, request_for("gated", 2), &response).error_code(), StatusCode::DEADLINE_EXCEEDED);
    while (stats("gated")["inference_stats"]["fail"]["count"] != 1) std::this_thread::yield();
    grpc::ClientContext cancelled;
    const auto stream = stub_->ModelStreamInfer(&cancelled);
    stream->Write(request_for("gated", 3));
    while (!waits("gated")) std::this_thread::yield();
    cancelled.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  }
  // The gate is still closed, so the requests are cancelled in the queue.
  while (stats("gated")["inference_stats"]["fail"]["count"] != 2) std::this_thread::yield();
  gate().open();
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(stats("gated")["execution_count"], 1);
}

TEST_F(GrpcServing, RejectsRequestsIfTheQueueIsFull) {
  const ClosedGate closed;
  std::vector<std::future<grpc::Status>> calls;
  const auto send = [&] {
    calls.push_back(std::async(std::launch::async, [&] { return infer(request_for("gated", 1)); }));
  };
  send();
  gate().wait_for_arrivals(1);
  for (int i = 0; i < 5; ++i) send();
  // Two of them fit into the queue.
  while (stats("gated")["inference_stats"]["fail"]["count"] != 3) std::this_thread::yield();
  gate().open();
  int good = 0, full = 0;
  for (auto& one : calls) {
    const grpc::Status status = one.get();
    good += status.ok();
    full += status.error_code() == StatusCode::UNAVAILABLE;
  }
  EXPECT_EQ(good, 3);
  EXPECT_EQ(full, 3);
}

TEST_F(GrpcServing, AnswersAcceptedCallsWhileItDrains) {
  const ClosedGate closed;
  auto unary = std::async(std::launch::async, [&] { return infer(request_for("gated", 1)); });
  gate().wait_for_arrivals(1);
  grpc::ClientContext context, idle_context;
  const auto stream = stub_->ModelStreamInfer(&context), idle = stub_->ModelStreamInfer(&idle_context);
  ASSERT_TRUE(stream->Write(request_for("identity", 1)));
  inference::ModelStreamInferResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(stream->Write(request_for("gated", 2)));
  ASSERT_TRUE(idle->Write(request_for("identity", 1)));
  ASSERT_TRUE(idle->Read(&response));
  while (!waits("gated")) std::this_thread::yield();
  auto drained = std::async(std::launch::async, [&] { return server_->drain(std::chrono::seconds(60)); });
  EXPECT_FALSE(idle->Read(&response));  // the idle stream ends while the others are answered
  EXPECT_EQ(idle->Finish().error_code(), StatusCode::UNAVAILABLE);
  gate().open();
  EXPECT_TRUE(unary.get().ok());
  EXPECT_TRUE(stream->Read(&response));
  EXPECT_EQ(value_of(response.infer_response()), 2.F);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(drained.get());
  EXPECT_EQ(infer(request_for("identity", 1)).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(GrpcServing, CancelsCallsAfterTheTimeOfDraining) {
  const ClosedGate closed;
  auto unary = std::async(std::launch::async, [&] { return infer(request_for("gated", 1)); });
  gate().wait_for_arrivals(1);
  auto drained = std::async(std::launch::async, [&] { return server_->drain(milliseconds(50)); });
  EXPECT_FALSE(unary.get().ok());
  gate().open();
  EXPECT_FALSE(drained.get());
}

TEST_F(GrpcServing, TracesRequests) {
  const std::string file = folder_.path() + "/trace";
  start([&](ServerOptions& options) { options.trace = {.file = file, .per_second = 0}; });
  const std::string trace_id = "0af7651916cd43dd8448eb211c80319c", span = "b7ad6b7169203331";
  grpc::ClientContext with_parent, streamed;
  with_parent.AddMetadata("traceparent", "00-" + trace_id + "-" + span + "-01");
  with_parent.AddMetadata("x-request-id", "from-metadata");
  ModelInferResponse response;
  EXPECT_TRUE(stub_->ModelInfer(&with_parent, request_for("identity", 1), &response).ok());
  EXPECT_FALSE(infer(request_for("none", 2)).ok());
  const auto stream = stub_->ModelStreamInfer(&streamed);
  for (const char* model : {"identity", "none"}) {
    ASSERT_TRUE(stream->Write(request_for(model, 3)));
    inference::ModelStreamInferResponse answer;
    ASSERT_TRUE(stream->Read(&answer));
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(server_->drain(std::chrono::seconds(60)));
  server_.reset();
  std::istringstream text(read_text_file(file));
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  ASSERT_EQ(lines.size(), 4);
  std::ranges::stable_sort(lines, {}, [](const json& one) { return one.at("received_ns").get<int64_t>(); });
  EXPECT_EQ(lines[0]["request_id"], "from-metadata");
  EXPECT_EQ(lines[0]["trace_id"], trace_id);
  EXPECT_EQ(lines[0]["parent_id"], span);
  EXPECT_EQ(lines[2]["request_id"], request_for("identity", 3).id());
  for (const size_t good : {0, 2}) {
    EXPECT_EQ(lines[good]["protocol"], "grpc");
    EXPECT_EQ(lines[good]["version"], "1");
    EXPECT_EQ(lines[good]["status"], 0);
    EXPECT_GT(lines[good]["bytes"], 16);
    EXPECT_LE(lines[good]["us"]["computed"], lines[good]["us"]["sent"]);
  }
  for (const size_t bad : {1, 3}) {
    EXPECT_EQ(lines[bad]["status"], static_cast<int>(StatusCode::NOT_FOUND));
    EXPECT_THAT(lines[bad]["error"].get<std::string>(), HasSubstr("unknown model"));
    EXPECT_FALSE(lines[bad]["us"].contains("queued"));
  }
}

TEST_F(GrpcServing, LosesNoRequestWhenModelsAreReloaded) {
  std::atomic<bool> stop{false};
  std::vector<std::future<int>> clients;
  for (int client = 0; client < 3; ++client)
    clients.push_back(std::async(std::launch::async, [&] {
      int wrong = 0;
      for (int i = 0; !stop; ++i) {
        ModelInferResponse response;
        const bool good = infer(request_for("identity", static_cast<float>(i)), &response).ok();
        wrong += !good || value_of(response) != static_cast<float>(i);
      }
      return wrong;
    }));
  for (int i = 0; i < 5; ++i) {
    folder_.write("identity/1/model.test", "identity " + std::to_string(i));
    inference::RepositoryModelLoadRequest load;
    inference::RepositoryModelLoadResponse loaded;
    load.set_model_name("identity");
    EXPECT_TRUE(call(*stub_, &Stub::RepositoryModelLoad, load, loaded).ok());
  }
  stop = true;
  for (auto& client : clients) EXPECT_EQ(client.get(), 0);
}

TEST_F(GrpcServing, SurvivesRandomBytes) {
  std::mt19937 random(3);
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (int i = 0; i < 200; ++i) {
    RawClient client(server_->grpc_port());
    std::string bytes = i % 2 == 0 ? "" : preface;
    // Frames with a valid head reach more of the server.
    for (int frame = 0; frame < 4; ++frame) {
      std::string payload(random() % 300, '\0');
      for (char& byte : payload) byte = static_cast<char>(random());
      const char head[9] = {0,
                            static_cast<char>(payload.size() >> 8U),
                            static_cast<char>(payload.size()),
                            static_cast<char>(random() % 11),
                            static_cast<char>(random()),
                            0,
                            0,
                            0,
                            static_cast<char>(random() % 8)};
      bytes += (i % 4 == 3 ? std::string(head, sizeof head) : "") + payload;
    }
    client.send(bytes);
    if (i % 3 == 0) client.reset();
    if (i % 20 != 0) continue;
    EXPECT_TRUE(infer(request_for("identity", 1)).ok());
  }
  EXPECT_TRUE(infer(request_for("identity", 1)).ok());
}

TEST_F(GrpcServing, RejectsInvalidAddresses) {
  ServerOptions options{.repository = folder_.path()};
  options.http.port = 0;
  options.grpc = GrpcOptions{.port = server_->grpc_port()};
  EXPECT_THAT([&] { Server(options, test_loader()); },
              testing::ThrowsMessage<c10::ValueError>(HasSubstr("gRPC cannot listen on 127.0.0.1:")));
}

}  // namespace bellows::serve
