#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "bellows/serve/grpc/grpc_options.h"
#include "bellows/serve/service.h"

namespace bellows::serve {

/// The gRPC service of the Open Inference Protocol. Package, names and field numbers are those of Triton.
///
/// A few threads wait for gRPC's completion queue. They read requests and never wait for a model. A response that has no
/// large tensors is written by the thread of the model, because waking another thread would take longer.
/// Threads: the server has its own threads. The public functions may be called from any other thread
class GrpcServer {
 public:
  /// Listens, and starts to accept calls.
  /// Params: service – must exist as long as the server
  /// Throws: c10::ValueError if the address is invalid or in use.
  ///         c10::NotImplementedError with missing() in builds without gRPC
  GrpcServer(GrpcOptions options, Service& service);
  /// All accepted calls must be answered before.
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  /// Returns an empty text, or what to install if Bellows was built without gRPC.
  static std::string missing();

  uint16_t port() const;
  /// Accepts no more calls, and waits until the accepted ones are answered.
  /// Params:  timeout – after this time, the remaining calls are cancelled
  /// Returns: whether all calls were answered in time
  bool drain(std::chrono::milliseconds timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows::serve
