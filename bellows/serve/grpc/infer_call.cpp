#include "bellows/serve/grpc/infer_call_impl.h"

#include <grpcpp/support/async_unary_call.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <atomic>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/serve/grpc/infer_message_impl.h"
#include "bellows/serve/grpc/response_buffer_impl.h"
#include "bellows/serve/request_error.h"

namespace bellows::serve {

namespace {

/// One call of ModelInfer.
class InferCallState final : public std::enable_shared_from_this<InferCallState> {
 public:
  explicit InferCallState(CallContext& context) : context_(context) {}

  void wait() {
    server_.AsyncNotifyWhenDone(ended_.arm(shared_from_this()));
    context_.service.RequestModelInfer(&server_, &request_, &writer_, context_.queue.get(), context_.queue.get(),
                                       received_event_.arm(shared_from_this()));
  }

 private:
  void on_received(bool ok) {
    // The server stops. gRPC reports no end of calls that have not begun.
    if (!ok) return ended_.forget();
    if (!active_.begin(context_)) return;
    received_ = Clock::now();
    accept_infer_call(context_);
    try {
      client_ = check_client(context_, server_, "/v2/models");
      message_ = parse_infer_message(request_);
      request_.Clear();
      trace_ = start_trace(context_, server_, client_, **message_, received_);
      infer();
    } catch (const std::exception& error) {
      fail(grpc_status(error));
    }
  }

  void infer() {
    const inference::ModelInferRequest& message = **message_;
    context_.handler.infer(
        {.model = message.model_name(),
         .version = message.model_version(),
         .received = received_,
         .cancelled = {shared_from_this(), &cancelled_},
         .trace = trace_,
         .parse =
             [this](const ModelSignature& model) {
               return read_infer_message(message_, model, context_.handler.shared_memory());
             },
         .done = [self = shared_from_this()](const std::shared_ptr<const ExpectedAnswer>& expected,
                                             InferenceResult result) { self->on_done(expected, std::move(result)); }});
  }

  void on_done(const std::shared_ptr<const ExpectedAnswer>& expected, InferenceResult result) {
    if (writes_quickly(result)) return answer(*expected, result);
    context_.post(
        [self = shared_from_this(), expected, result = std::move(result)] { self->answer(*expected, result); });
  }

  void answer(const ExpectedAnswer& expected, const InferenceResult& result) {
    if (trace_) trace_->times = result.times;
    try {
      if (result.error) throw *result.error;
      const grpc::ByteBuffer response = response_buffer(*expected.model, expected.id, expected.outputs, result.outputs,
                                                        ResponseKind::unary, result.bytes);
      log(grpc::Status::OK);
      if (trace_) trace_->response.bytes = response.Length();
      writer_.Finish(response, grpc::Status::OK, finished_.arm(shared_from_this()));
    } catch (const std::exception& error) {
      fail(grpc_status(error));
    }
  }

  void fail(const grpc::Status& status) {
    log(status);
    if (trace_) {
      trace_->error = status.error_message();
      trace_->response.status = status.error_code();
    }
    writer_.FinishWithError(status, finished_.arm(shared_from_this()));
  }

  void log(const grpc::Status& status) const {
    log_request(context_, server_, client_, "ModelInfer", message_ ? (*message_)->model_name() : "", status, received_);
  }

  void on_ended(bool) {
    if (server_.IsCancelled()) cancelled_ = true;
  }
  void on_finished(bool ok) {
    if (trace_ && ok) trace_->response.sent = Clock::now();
    trace_.reset();  // writes the trace, before the server can be idle
    active_.end();
  }

  CallContext& context_;
  grpc::ServerContext server_{};
  grpc::ByteBuffer request_{};
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer_{&server_};
  MemberEvent<InferCallState> received_event_{&InferCallState::on_received};
  MemberEvent<InferCallState> ended_{&InferCallState::on_ended};
  MemberEvent<InferCallState> finished_{&InferCallState::on_finished};
  std::string client_{};  ///< see check_client()
  std::shared_ptr<const InferMessage> message_{};
  std::atomic<bool> cancelled_{false};
  Clock::time_point received_{};
  std::shared_ptr<RequestTrace> trace_{};
  ActiveCall active_{};
};

}  // namespace

void accept_infer_call(CallContext& context) {
  std::make_shared<InferCallState>(context)->wait();
}

std::shared_ptr<const InferMessage> parse_infer_message(grpc::ByteBuffer& bytes) {
  auto message = std::make_shared<InferMessage>();
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok() || !(*message)->ParseFromZeroCopyStream(&reader))
    throw RequestError(status_bad_request, "the request is not a valid message of the type ModelInferRequest.");
  return message;
}

std::shared_ptr<RequestTrace> start_trace(const CallContext& context, const grpc::ServerContext& server,
                                          const std::string& client, const inference::ModelInferRequest& request,
                                          Clock::time_point received) {
  std::shared_ptr<RequestTrace> trace =
      context.handler.start_trace({.traceparent = metadata_value(server, "traceparent"),
                                   .request_id = metadata_value(server, "x-request-id"),
                                   .client = client,
                                   .received = received});
  if (!trace) return trace;
  trace->protocol = "grpc";
  trace->model = request.model_name();
  trace->version = request.model_version();
  return trace;
}

void log_request(const CallContext& context, const grpc::ServerContext& server, const std::string& client,
                 const char* method, const std::string& model, const grpc::Status& status, Clock::time_point received) {
  if (!context.options.access_log) return;
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - received).count();
  log_info(server.peer(), client.empty() ? "" : " ", client, " gRPC ", method, " \"", model, "\" ",
           static_cast<int>(status.error_code()), " ", ms, " ms", status.ok() ? "" : ": ", status.error_message());
}

}  // namespace bellows::serve
