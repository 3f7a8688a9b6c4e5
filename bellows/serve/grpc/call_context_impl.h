#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "bellows/core/mutex.h"
#include "bellows/serve/grpc/grpc_options.h"
#include "bellows/serve/grpc/inference.grpc.pb.h"
#include "bellows/serve/service.h"

/// Parts that the calls of the gRPC service share.
namespace bellows::serve {

template <class Base>
using ControlMethods1 = inference::GRPCInferenceService::WithAsyncMethod_ServerLive<
    inference::GRPCInferenceService::WithAsyncMethod_ServerReady<
        inference::GRPCInferenceService::WithAsyncMethod_ModelReady<
            inference::GRPCInferenceService::WithAsyncMethod_ServerMetadata<
                inference::GRPCInferenceService::WithAsyncMethod_ModelMetadata<
                    inference::GRPCInferenceService::WithAsyncMethod_ModelConfig<
                        inference::GRPCInferenceService::WithAsyncMethod_ModelStatistics<Base>>>>>>>;
template <class Base>
using ControlMethods2 = inference::GRPCInferenceService::WithAsyncMethod_RepositoryIndex<
    inference::GRPCInferenceService::WithAsyncMethod_RepositoryModelLoad<
        inference::GRPCInferenceService::WithAsyncMethod_RepositoryModelUnload<
            inference::GRPCInferenceService::WithAsyncMethod_SystemSharedMemoryStatus<
                inference::GRPCInferenceService::WithAsyncMethod_SystemSharedMemoryRegister<
                    inference::GRPCInferenceService::WithAsyncMethod_SystemSharedMemoryUnregister<Base>>>>>>;

/// The service with asynchronous methods. The messages of inference are read and written as bytes, to avoid copies.
using AsyncService = inference::GRPCInferenceService::WithRawMethod_ModelInfer<
    inference::GRPCInferenceService::WithRawMethod_ModelStreamInfer<
        ControlMethods1<ControlMethods2<inference::GRPCInferenceService::Service>>>>;

/// An event that gRPC's completion queue returns. Each event is returned once for each time that it was passed to gRPC.
class CallEvent {
 public:
  virtual ~CallEvent() = default;
  /// Params: ok – whether the operation succeeded
  virtual void proceed(bool ok) = 0;
};

/// An event that calls a member function of a call. While gRPC has the event, the call exists.
template <class Call>
class MemberEvent final : public CallEvent {
 public:
  explicit MemberEvent(void (Call::*function)(bool)) : function_(function) {}

  /// Returns the tag to pass to gRPC.
  void* arm(std::shared_ptr<Call> call) {
    call_ = std::move(call);
    return static_cast<CallEvent*>(this);
  }
  /// Call this function if gRPC will not return the event.
  void forget() { call_.reset(); }
  void proceed(bool ok) override {
    const std::shared_ptr<Call> call = std::move(call_);  // the event is part of the call
    call_.reset();
    ((*call).*function_)(ok);
  }

 private:
  void (Call::*function_)(bool);
  std::shared_ptr<Call> call_{};
};

/// A stream that is told when the server drains.
class DrainableCall {
 public:
  virtual ~DrainableCall() = default;
  virtual void begin_drain() = 0;
};

/// What all calls of a server use, and how many of them are active.
/// Threads: thread-safe
class CallContext {
 public:
  CallContext(const GrpcOptions& given_options, Service& service_handler)
      : options(given_options), handler(service_handler) {}

  const GrpcOptions& options;
  Service& handler;
  AsyncService service{};
  std::unique_ptr<grpc::ServerCompletionQueue> queue{};

  /// Counts a call from its arrival to its end.
  /// Returns: false after stop(). The call is cancelled then, and must not use the queue
  bool begin_call();
  void end_call();
  /// Returns whether the number of calls became 0 in time.
  bool wait_until_idle(std::chrono::steady_clock::time_point deadline);

  void add_stream(const std::shared_ptr<DrainableCall>& call);
  /// Tells all streams, including later ones, that the server drains.
  void drain_streams();

  /// Waits until all calls have ended. Later ones do not begin, so that the queue can be shut down.
  void stop();

  /// Calls a function on a thread of the server.
  void post(std::function<void()> function);

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  int64_t calls_ BELLOWS_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point idle_since_ BELLOWS_GUARDED_BY(mutex_){};
  bool draining_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool stopped_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::list<std::weak_ptr<DrainableCall>> streams_ BELLOWS_GUARDED_BY(mutex_){};
};

/// Counts a call from begin() to end().
class ActiveCall {
 public:
  ActiveCall() = default;
  ~ActiveCall() { end(); }
  ActiveCall(const ActiveCall&) = delete;
  ActiveCall& operator=(const ActiveCall&) = delete;

  /// See CallContext::begin_call().
  bool begin(CallContext& context) {
    if (!context.begin_call()) return false;
    context_ = &context;
    return true;
  }
  void end() {
    if (context_) std::exchange(context_, nullptr)->end_call();
  }

 private:
  CallContext* context_ = nullptr;
};

/// Returns the first value of a call's metadata with this name, or "". It is valid as long as the call.
/// Params: name – in lower case
std::string_view metadata_value(const grpc::ServerContext& server, const char* name);

/// Checks the token in the metadata `authorization` of a call.
/// Params:  target – the URL of the HTTP service that does the same
/// Returns: see Service::client_of()
/// Throws:  RequestError with status 401 if the token is missing or unknown
std::string check_client(const CallContext& context, const grpc::ServerContext& server, std::string_view target);

/// Returns the gRPC status for an error, as Triton maps them.
grpc::Status grpc_status(int http_status, const std::string& message);
grpc::Status grpc_status(const std::exception& error);

/// Whether the thread of the model should write a response with these outputs itself.
bool writes_quickly(const InferenceResult& result);

}  // namespace bellows::serve
