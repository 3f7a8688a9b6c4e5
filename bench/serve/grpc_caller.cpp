// The generated header must come before those of libtorch, which contain another version of protobuf.
#include "bellows/serve/grpc/inference.grpc.pb.h"
// clang-format off: see above
#include "bench/serve/grpc_caller.h"
// clang-format on

#include <c10/util/Exception.h>
#include <grpcpp/grpcpp.h>

#include <cstring>
#include <memory>

namespace bellows::bench {

GrpcCaller::GrpcCaller(const std::string& address, const std::string& model, const std::vector<float>& values) {
  using Service = inference::GRPCInferenceService;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const std::shared_ptr<Service::Stub> stub =
      Service::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  inference::ModelInferRequest request;
  request.set_model_name(model);
  auto* const input = request.add_inputs();
  input->set_name("x");
  input->set_datatype("FP32");
  input->add_shape(1);
  input->add_shape(static_cast<int64_t>(values.size()));
  request.add_raw_input_contents(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  infer_ = [stub, request] {
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    const grpc::Status status = stub->ModelInfer(&context, request, &response);
    TORCH_CHECK(status.ok() && response.raw_output_contents_size() == 1, "gRPC: ", status.error_message());
    const std::string& bytes = response.raw_output_contents(0);
    std::vector<float> output(bytes.size() / sizeof(float));
    std::memcpy(output.data(), bytes.data(), output.size() * sizeof(float));
    return output;
  };
  live_ = [stub] {
    grpc::ClientContext context;
    inference::ServerLiveResponse response;
    const grpc::Status status = stub->ServerLive(&context, {}, &response);
    TORCH_CHECK(status.ok() && response.live(), "gRPC: ", status.error_message());
  };
}

}  // namespace bellows::bench
