#include <grpcpp/support/async_stream.h>

#include <atomic>
#include <deque>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/serve/grpc/infer_call_impl.h"
#include "bellows/serve/grpc/infer_message_impl.h"
#include "bellows/serve/grpc/response_buffer_impl.h"
#include "bellows/serve/request_error.h"

namespace bellows::serve {

namespace {

/// One request of a stream, in the order of their arrival. Its response is written when those of earlier ones are.
struct StreamRequest {
  std::string client{};  ///< see check_client()
  std::shared_ptr<RequestTrace> trace{};
  std::optional<grpc::ByteBuffer> response{};
};

/// One call of ModelStreamInfer.
class StreamCallState final : public DrainableCall, public std::enable_shared_from_this<StreamCallState> {
 public:
  explicit StreamCallState(CallContext& context) : context_(context) {}

  void wait() {
    server_.AsyncNotifyWhenDone(ended_.arm(shared_from_this()));
    context_.service.RequestModelStreamInfer(&server_, &stream_, context_.queue.get(), context_.queue.get(),
                                             received_.arm(shared_from_this()));
  }

  void begin_drain() override {
    const MutexLock lock(mutex_);
    draining_ = true;
    proceed_locked();
  }

 private:
  void on_received(bool ok) {
    // The server stops. gRPC reports no end of calls that have not begun.
    if (!ok) return ended_.forget();
    if (!active_.begin(context_)) return;
    accept_stream_call(context_);
    context_.add_stream(shared_from_this());
    const MutexLock lock(mutex_);
    begun_ = true;
    proceed_locked();
  }

  void on_read(bool ok) {
    grpc::ByteBuffer bytes;
    std::shared_ptr<StreamRequest> request;
    {
      const MutexLock lock(mutex_);
      reading_ = false;
      if (!ok) {
        half_closed_ = true;
        return proceed_locked();
      }
      bytes.Swap(&read_);
      requests_.push_back(std::make_shared<StreamRequest>());
      request = requests_.back();
    }
    infer(request, bytes);
    const MutexLock lock(mutex_);
    proceed_locked();
  }

  void infer(const std::shared_ptr<StreamRequest>& request, grpc::ByteBuffer& bytes) {
    const auto received = Clock::now();
    std::shared_ptr<const InferMessage> message;
    try {
      request->client = check_client(context_, server_, "/v2/models");
      message = parse_infer_message(bytes);
      bytes.Clear();
      request->trace = start_trace(context_, server_, request->client, **message, received);
      context_.handler.infer(
          {.model = (*message)->model_name(),
           .version = (*message)->model_version(),
           .received = received,
           .cancelled = {shared_from_this(), &cancelled_},
           .trace = request->trace,
           .parse =
               [&](const ModelSignature& model) {
                 return read_infer_message(message, model, context_.handler.shared_memory());
               },
           .done = [self = shared_from_this(), request, received](
                       const std::shared_ptr<const ExpectedAnswer>& expected,
                       InferenceResult result) { self->on_done(request, expected, std::move(result), received); }});
    } catch (const std::exception& error) {
      const inference::ModelInferRequest none, &from = message ? **message : none;
      answer_error(*request, error, from.model_name(), from.model_version(), from.id(), received);
    }
  }

  void on_done(const std::shared_ptr<StreamRequest>& request, const std::shared_ptr<const ExpectedAnswer>& expected,
               InferenceResult result, Clock::time_point received) {
    if (writes_quickly(result)) return answer(*request, *expected, result, received);
    context_.post([self = shared_from_this(), request, expected, result = std::move(result), received] {
      self->answer(*request, *expected, result, received);
    });
  }

  void answer(StreamRequest& request, const ExpectedAnswer& expected, const InferenceResult& result,
              Clock::time_point received) {
    if (request.trace) request.trace->times = result.times;
    try {
      if (result.error) throw *result.error;
      grpc::ByteBuffer response = response_buffer(*expected.model, expected.id, expected.outputs, result.outputs,
                                                  ResponseKind::stream, result.bytes);
      log_request(context_, server_, request.client, "ModelStreamInfer", expected.model->name, grpc::Status::OK,
                  received);
      set_response(request, std::move(response));
    } catch (const std::exception& error) {
      answer_error(request, error, expected.model->name, expected.model->version, expected.id, received);
    }
  }

  void answer_error(StreamRequest& request, const std::exception& error, const std::string& model,
                    const std::string& version, const std::string& id, Clock::time_point received) {
    const grpc::Status status = grpc_status(error);
    if (request.trace) {
      request.trace->error = status.error_message();
      request.trace->response.status = status.error_code();
    }
    log_request(context_, server_, request.client, "ModelStreamInfer", model, status, received);
    set_response(request, error_buffer(status.error_message(), model, version, id));
  }

  void set_response(StreamRequest& request, grpc::ByteBuffer response) {
    const MutexLock lock(mutex_);
    request.response = std::move(response);
    proceed_locked();
  }

  void on_written(bool ok) {
    const MutexLock lock(mutex_);
    writing_ = false;
    const StreamRequest& written = *requests_.front();
    if (written.trace && ok) {
      written.trace->response.bytes = written.response->Length();
      written.trace->response.sent = Clock::now();
    }
    requests_.pop_front();
    broken_ = broken_ || !ok;
    proceed_locked();
  }

  void on_ended(bool) {
    if (!server_.IsCancelled()) return;
    cancelled_ = true;
    const MutexLock lock(mutex_);
    broken_ = true;
    proceed_locked();
  }
  void on_finished(bool) { active_.end(); }

  /// Starts the operations that are possible now: at most one of reading, one of writing, and the end.
  void proceed_locked() BELLOWS_REQUIRES(mutex_) {
    if (!begun_ || finished_) return;
    while (broken_ && !writing_ && !requests_.empty() && requests_.front()->response) requests_.pop_front();
    if (!writing_ && !requests_.empty() && requests_.front()->response) {
      writing_ = true;
      stream_.Write(*requests_.front()->response, written_.arm(shared_from_this()));
    }
    const bool more = !half_closed_ && !draining_ && !broken_;
    if (more && !reading_ && requests_.size() < static_cast<size_t>(context_.options.max_pending_per_stream)) {
      reading_ = true;
      stream_.Read(&read_, read_event_.arm(shared_from_this()));
    }
    if (more || !requests_.empty() || writing_) return;
    finished_ = true;
    stream_.Finish(half_closed_ || broken_ ? grpc::Status::OK
                                           : grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is stopping."),
                   finished_event_.arm(shared_from_this()));
  }

  CallContext& context_;
  grpc::ServerContext server_{};
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&server_};
  MemberEvent<StreamCallState> received_{&StreamCallState::on_received};
  MemberEvent<StreamCallState> ended_{&StreamCallState::on_ended};
  MemberEvent<StreamCallState> read_event_{&StreamCallState::on_read};
  MemberEvent<StreamCallState> written_{&StreamCallState::on_written};
  MemberEvent<StreamCallState> finished_event_{&StreamCallState::on_finished};
  std::atomic<bool> cancelled_{false};
  ActiveCall active_{};
  Mutex mutex_;
  grpc::ByteBuffer read_ BELLOWS_GUARDED_BY(mutex_){};
  std::deque<std::shared_ptr<StreamRequest>> requests_ BELLOWS_GUARDED_BY(mutex_){};  ///< without a written response
  bool begun_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool reading_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool writing_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool half_closed_ BELLOWS_GUARDED_BY(mutex_) = false;  ///< the client sends no more requests
  bool draining_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool broken_ BELLOWS_GUARDED_BY(mutex_) = false;  ///< responses cannot be sent any more
  bool finished_ BELLOWS_GUARDED_BY(mutex_) = false;
};

}  // namespace

void accept_stream_call(CallContext& context) {
  std::make_shared<StreamCallState>(context)->wait();
}

}  // namespace bellows::serve
