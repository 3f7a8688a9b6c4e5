#include "bellows/serve/grpc/call_context_impl.h"

#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/log.h"

namespace bellows::serve {

namespace {

/// A function that waits in the completion queue.
class PostedEvent final : public CallEvent {
 public:
  explicit PostedEvent(std::function<void()> function) : function_(std::move(function)) {}
  void start(grpc::CompletionQueue* queue) {
    alarm_.Set(queue, gpr_time_0(GPR_CLOCK_MONOTONIC), static_cast<CallEvent*>(this));
  }
  void proceed(bool) override {
    const std::unique_ptr<PostedEvent> owned(this);
    function_();
  }

 private:
  std::function<void()> function_;
  grpc::Alarm alarm_{};
};

}  // namespace

bool CallContext::begin_call() {
  const MutexLock lock(mutex_);
  calls_ += stopped_ ? 0 : 1;
  return !stopped_;
}

void CallContext::end_call() {
  const MutexLock lock(mutex_);
  if (--calls_ > 0) return;
  idle_since_ = std::chrono::steady_clock::now();
  if (draining_) changed_.notify_all();  // under the lock, because the context may be destroyed next
}

bool CallContext::wait_until_idle(std::chrono::steady_clock::time_point deadline) {
  UniqueLock lock(mutex_);
  const auto idle = [this]() BELLOWS_REQUIRES(mutex_) { return calls_ == 0; };
  return changed_.wait_for(lock, deadline - std::chrono::steady_clock::now(), idle) && idle_since_ <= deadline;
}

void CallContext::add_stream(const std::shared_ptr<DrainableCall>& call) {
  bool draining = false;
  {
    const MutexLock lock(mutex_);
    streams_.remove_if([](const std::weak_ptr<DrainableCall>& one) { return one.expired(); });
    streams_.push_back(call);
    draining = draining_;
  }
  if (draining) call->begin_drain();
}

void CallContext::drain_streams() {
  std::vector<std::shared_ptr<DrainableCall>> all;
  {
    const MutexLock lock(mutex_);
    draining_ = true;
    for (const auto& weak : streams_) {
      if (auto call = weak.lock()) all.push_back(std::move(call));
    }
  }
  for (const auto& call : all) call->begin_drain();
}

void CallContext::stop() {
  UniqueLock lock(mutex_);
  draining_ = stopped_ = true;
  changed_.wait(lock, [this]() BELLOWS_REQUIRES(mutex_) { return calls_ == 0; });
}

void CallContext::post(std::function<void()> function) {
  auto event = std::make_unique<PostedEvent>(std::move(function));
  event.release()->start(queue.get());
}

std::string_view metadata_value(const grpc::ServerContext& server, const char* name) {
  const auto& metadata = server.client_metadata();
  const auto found = metadata.find(name);
  if (found == metadata.end()) return "";
  return {found->second.data(), found->second.size()};
}

std::string check_client(const CallContext& context, const grpc::ServerContext& server, std::string_view target) {
  return context.handler.client_of(target, metadata_value(server, "authorization"));
}

grpc::Status grpc_status(int http_status, const std::string& message) {
  const auto code = [&] {
    switch (http_status) {
      case status_bad_request:
        return grpc::StatusCode::INVALID_ARGUMENT;
      case status_unauthorized:
        return grpc::StatusCode::UNAUTHENTICATED;
      case 403:
        return grpc::StatusCode::PERMISSION_DENIED;
      case status_not_found:
        return grpc::StatusCode::NOT_FOUND;
      case status_conflict:
        return grpc::StatusCode::ALREADY_EXISTS;
      case 413:
        return grpc::StatusCode::RESOURCE_EXHAUSTED;
      case status_cancelled:
        return grpc::StatusCode::CANCELLED;
      case status_internal:
        return grpc::StatusCode::INTERNAL;
      case status_unsupported:
        return grpc::StatusCode::UNIMPLEMENTED;
      case status_unavailable:
        return grpc::StatusCode::UNAVAILABLE;
      default:
        return grpc::StatusCode::UNKNOWN;
    }
  }();
  // The message is part of a header, and clients limit their size.
  constexpr size_t longest = 4096;
  return {code, message.size() <= longest ? message : message.substr(0, longest) + " …"};
}

grpc::Status grpc_status(const std::exception& error) {
  const auto* known = dynamic_cast<const RequestError*>(&error);
  return known ? grpc_status(known->status(), known->what()) : grpc_status(status_internal, user_message(error));
}

bool writes_quickly(const InferenceResult& result) {
  constexpr size_t most = 65536;
  size_t bytes = 0;
  for (const at::Tensor& output : result.outputs) bytes += output.defined() ? output.nbytes() : 0;
  for (const auto& output : result.bytes) {
    if (!output) continue;
    for (const std::string& value : output->values) bytes += value.size();
  }
  return bytes <= most;
}

}  // namespace bellows::serve
