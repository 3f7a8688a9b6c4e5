// Takes the place of the gRPC server in builds without gRPC.
#include <c10/util/Exception.h>

#include "bellows/serve/grpc/grpc_server.h"

namespace bellows::serve {

class GrpcServer::Impl {};

std::string GrpcServer::missing() {
  return "Bellows was built without gRPC. Install libgrpc++-dev and protobuf-compiler-grpc, and build Bellows again.";
}

GrpcServer::GrpcServer(GrpcOptions, Service&) {  // NOLINT(performance-unnecessary-value-param): as in grpc_server.h
  TORCH_CHECK_NOT_IMPLEMENTED(false, missing());
}
GrpcServer::~GrpcServer() = default;

uint16_t GrpcServer::port() const {
  return 0;
}
bool GrpcServer::drain(std::chrono::milliseconds) {
  return true;
}

}  // namespace bellows::serve
