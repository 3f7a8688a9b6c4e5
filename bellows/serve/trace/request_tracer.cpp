#include "bellows/serve/trace/request_tracer.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/report/json_text.h"

namespace bellows::serve {

namespace {

using nlohmann::ordered_json;

int64_t ns_since_1970(Clock::time_point time) {
  using std::chrono::duration_cast, std::chrono::nanoseconds;
  const auto ago = Clock::now() - time;
  return duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count() -
         duration_cast<nanoseconds>(ago).count();
}

/// Times in microseconds after the request was received, in the order in which they pass. Steps that the request did not
/// reach are left out.
ordered_json times_json(const RequestTrace& trace) {
  const std::pair<const char*, Clock::time_point> steps[] = {
      {"parsed", trace.parsed},           {"queued", trace.times.queued},
      {"batch_start", trace.times.taken}, {"inputs_ready", trace.times.inputs_ready},
      {"computed", trace.times.computed}, {"done", trace.times.done},
      {"sent", trace.response.sent},
  };
  ordered_json json = ordered_json::object();
  for (const auto& [name, time] : steps) {
    if (time == Clock::time_point{}) continue;
    json[name] = std::chrono::duration<double, std::micro>(time - trace.times.received).count();
  }
  return json;
}

ordered_json trace_json(const RequestTrace& trace) {
  ordered_json json = {{"received_ns", ns_since_1970(trace.times.received)},
                       {"trace_id", trace.context.trace_id},
                       {"span_id", trace.context.span_id}};
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  };
  add("parent_id", trace.context.parent_id);
  add("request_id", trace.request_id);
  add("client", trace.client);
  json["protocol"] = trace.protocol;
  json["model"] = trace.model;
  add("version", trace.version);
  if (trace.rows > 0) json["rows"] = trace.rows;
  const bool sent = trace.response.sent != Clock::time_point{};
  json["status"] = sent ? ordered_json(trace.response.status) : ordered_json(nullptr);
  json["bytes"] = trace.response.bytes;
  add("error", trace.error);
  json["us"] = times_json(trace);
  return json;
}

/// Clients choose this value, so its size is limited.
std::string limited(std::string_view text) {
  constexpr size_t most = 256;
  return std::string(text.substr(0, most));
}

}  // namespace

RequestTrace::~RequestTrace() {
  tracer_->write(*this);
}

RequestTracer::RequestTracer(const std::string& file, uint64_t per_second)
    : file_name_(file), per_second_(per_second), file_(std::fopen(file.c_str(), "ae")) {
  const MutexLock lock(mutex_);
  TORCH_CHECK_VALUE(file_ != nullptr, file, ": cannot write traces to this file: ", errno_message(errno), ".");
}

RequestTracer::~RequestTracer() {
  flush();
  const MutexLock lock(mutex_);
  if (file_) std::fclose(file_);
}

std::shared_ptr<RequestTrace> RequestTracer::start(const TraceStart& request, Clock::time_point now) {
  if (!sample(now)) return {};
  auto trace = std::make_shared<RequestTrace>(shared_from_this());
  trace->context = next_span(request.traceparent);
  trace->request_id = limited(request.request_id);
  trace->client = request.client;
  trace->times.received = request.received;
  return trace;
}

bool RequestTracer::sample(Clock::time_point now) {
  const MutexLock lock(mutex_);
  if (failed_) return false;
  if (per_second_ == 0) return true;
  if (now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    started_ = 0;
  }
  return started_++ < per_second_;
}

void RequestTracer::write(const RequestTrace& trace) {
  const std::string line = json_text(trace_json(trace)) + "\n";
  const MutexLock lock(mutex_);
  if (!failed_ && std::fwrite(line.data(), 1, line.size(), file_) < line.size()) error_ = errno;
}

void RequestTracer::flush() {
  const MutexLock lock(mutex_);
  if (!failed_ && std::fflush(file_) != 0) error_ = errno;
  if (failed_ || error_ == 0) return;
  failed_ = true;
  log_error(file_name_, ": cannot write traces: ", errno_message(error_), ". No more requests are traced.");
}

}  // namespace bellows::serve
