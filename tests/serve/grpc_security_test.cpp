// Tokens and TLS of the gRPC service.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "bellows/serve/grpc/inference.grpc.pb.h"
#include "tests/serve/started_server.h"
#include "tests/serve/tls_client.h"
#include "tests/support/captured_log.h"

namespace bellows::serve {

namespace {

using grpc::StatusCode;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using Stub = inference::GRPCInferenceService::Stub;

std::unique_ptr<Stub> connect(StartedServer& server, const std::string& certificate = "") {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!certificate.empty()) {
    credentials = grpc::SslCredentials({.pem_root_certs = certificate});
    arguments.SetSslTargetNameOverride("localhost");
  }
  return inference::GRPCInferenceService::NewStub(
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server.server().grpc_port()), credentials, arguments));
}

/// Adds the token to a call, and limits its time.
void prepare(grpc::ClientContext& context, const std::string& token) {
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
}

inference::ModelInferRequest request() {
  inference::ModelInferRequest one;
  one.set_model_name("identity");
  auto* input = one.add_inputs();
  input->set_name("x");
  input->set_datatype("FP32");
  input->add_shape(1);
  input->add_shape(4);
  one.add_raw_input_contents(std::string(16, '\0'));
  return one;
}

StatusCode infer_status(Stub& stub, const std::string& token) {
  grpc::ClientContext context;
  prepare(context, token);
  inference::ModelInferResponse response;
  return stub.ModelInfer(&context, request(), &response).error_code();
}

StatusCode live_status(Stub& stub, const std::string& token) {
  grpc::ClientContext context;
  prepare(context, token);
  inference::ServerLiveResponse response;
  return stub.ServerLive(&context, {}, &response).error_code();
}

void use_grpc(ServerOptions& options) {
  options.grpc = GrpcOptions{.port = 0};
}

void use_tokens(ServerOptions& options, const TestFolder& folder) {
  use_grpc(options);
  folder.write("tokens", "team:secret-1\n");
  options.access.token_file = folder.path() + "/tokens";
}

}  // namespace

TEST(GrpcSecurity, CallsNeedTheToken) {
  StartedServer server(use_tokens);
  const auto stub = connect(server);
  EXPECT_EQ(infer_status(*stub, "secret-1"), StatusCode::OK);
  EXPECT_EQ(live_status(*stub, "secret-1"), StatusCode::OK);
  for (const char* wrong : {"", "secret-2", "secret-1x"}) {
    EXPECT_EQ(infer_status(*stub, wrong), StatusCode::UNAUTHENTICATED) << wrong;
    EXPECT_EQ(live_status(*stub, wrong), StatusCode::UNAUTHENTICATED) << wrong;
  }
  grpc::ClientContext context;
  prepare(context, "");
  const auto stream = stub->ModelStreamInfer(&context);
  stream->Write(request());
  stream->WritesDone();
  inference::ModelStreamInferResponse answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_THAT(answer.error_message(), HasSubstr("Bearer TOKEN"));
  EXPECT_FALSE(stream->Read(&answer));
  stream->Finish();
}

TEST(GrpcSecurity, TheAccessLogNamesTheClient) {
  const CapturedLog log;
  {
    StartedServer server([](ServerOptions& options, const TestFolder& folder) {
      use_tokens(options, folder);
      options.grpc->access_log = true;
    });
    const auto stub = connect(server);
    infer_status(*stub, "secret-1");
    infer_status(*stub, "secret-2");
    server.server().drain(std::chrono::seconds(20));
  }
  EXPECT_THAT(log.text(), ContainsRegex("127.0.0.1:[0-9]+ team gRPC ModelInfer \"identity\" 0 "));
  EXPECT_THAT(log.text(), ContainsRegex("127.0.0.1:[0-9]+ gRPC ModelInfer \"\" 16 "));
  EXPECT_THAT(log.text(), Not(HasSubstr("secret")));
}

TEST(GrpcSecurity, HealthCanBeOpen) {
  StartedServer server([](ServerOptions& options, const TestFolder& folder) {
    use_tokens(options, folder);
    options.access.open_health = true;
  });
  const auto stub = connect(server);
  EXPECT_EQ(live_status(*stub, ""), StatusCode::OK);
  EXPECT_EQ(infer_status(*stub, ""), StatusCode::UNAUTHENTICATED);
}

TEST(GrpcSecurity, OtherMachinesNeedTokens) {
  EXPECT_THROW(StartedServer([](ServerOptions& options, const TestFolder&) {
                 options.grpc = GrpcOptions{.address = "0.0.0.0", .port = 0};
               }),
               c10::ValueError);
  EXPECT_THROW(StartedServer([](ServerOptions& options, const TestFolder&) {
                 options.grpc = GrpcOptions{.address = "localhost", .port = 0};  // may be any address
               }),
               c10::ValueError);
}

TEST(GrpcSecurity, EncryptsConnections) {
  const TestCertificate made = make_certificate("localhost");
  StartedServer server([&](ServerOptions& options, const TestFolder& folder) {
    use_grpc(options);
    folder.write("key.pem", made.key);
    folder.write("certificate.pem", made.certificate);
    options.http.tls_certificate = folder.path() + "/certificate.pem";
    options.http.tls_key = folder.path() + "/key.pem";
  });
  EXPECT_EQ(infer_status(*connect(server, made.certificate), ""), StatusCode::OK);
  EXPECT_EQ(infer_status(*connect(server, make_certificate("localhost").certificate), ""), StatusCode::UNAVAILABLE);
  EXPECT_EQ(infer_status(*connect(server), ""), StatusCode::UNAVAILABLE);  // without encryption
}

}  // namespace bellows::serve
